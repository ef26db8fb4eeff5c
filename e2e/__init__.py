"""The project on a real cluster, as its users have it."""
