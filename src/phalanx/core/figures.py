"""Figures that scripts log, as far as their names tell what they mean."""

from __future__ import annotations


def smaller_is_better(name: str) -> bool:
    return any(word in name.lower() for word in ("loss", "error", "perplexity"))
