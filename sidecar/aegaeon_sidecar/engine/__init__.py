"""Execution: lanes that execute the scheduler's commands, turns of prefill and decode steps."""
