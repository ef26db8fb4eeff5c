"""What the endpoint picker speaks of Envoy's protocols. Generated modules; the source is the .proto file beside them."""
