"""Request schemas and prompts."""
