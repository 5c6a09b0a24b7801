"""The verbs about machines: ``pool``, ``lab``, ``doctor``."""
