"""Addresses as they are written."""

from __future__ import annotations


def endpoint(address: str, port: int) -> str:
    """``address:port``; an address of IPv6 in brackets, so that its colons are its own."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
