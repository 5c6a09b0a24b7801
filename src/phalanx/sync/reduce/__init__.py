"""Adding up gradients: within a host, between hosts, with a codec; clipping and finiteness."""
