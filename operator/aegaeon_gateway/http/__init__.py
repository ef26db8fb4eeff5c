"""The HTTP side: connections, routes and the handlers of the endpoints."""
