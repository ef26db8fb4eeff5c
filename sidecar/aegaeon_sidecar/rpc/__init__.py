"""Connections: the scheduler's stream of commands and reports, tokens to gateways."""
