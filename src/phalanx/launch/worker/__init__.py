"""Code of a worker process, which is bound to its controller before torch is imported."""
