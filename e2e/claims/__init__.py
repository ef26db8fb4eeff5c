"""A driver of dynamic resource allocation: devices that nodes say they have, prepared for the pods that claim them."""
