"""The parts of Envoy's protocols that the endpoint picker uses. Generated modules; the source is the .proto file beside
them."""
