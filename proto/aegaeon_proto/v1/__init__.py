"""Version 1 of the wire. Generated modules; the sources are the .proto files beside them."""
