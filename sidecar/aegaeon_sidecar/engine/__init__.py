"""What runs: lanes that carry out the scheduler's commands, turns of prefill and decode steps."""
