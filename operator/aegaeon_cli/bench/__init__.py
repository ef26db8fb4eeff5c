"""`aegaeon bench`: switches of a real engine, measured and drawn."""
