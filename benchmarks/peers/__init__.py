"""One process of a system that is measured; what other systems need is imported only there."""
