"""``plan`` and ``simulate``: predict runs, to choose machines and a strategy before training."""
