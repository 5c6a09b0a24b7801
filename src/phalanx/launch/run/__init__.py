"""One run from start to end: the controller, what it watches, and how it ends."""
