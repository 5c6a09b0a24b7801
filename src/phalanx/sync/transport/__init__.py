"""The wires: memory shared by threads, memory shared by processes."""
