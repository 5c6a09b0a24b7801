"""The events of a run: their types, who writes them, who reads them."""
