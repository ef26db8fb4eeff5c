"""`python -m aegaeon_cli.demo`."""

from aegaeon_cli.demo.command import demo

demo()
