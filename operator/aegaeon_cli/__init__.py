"""The `aegaeon` command."""
