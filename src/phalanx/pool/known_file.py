"""Where the host keys of a pool are kept: beside its blueprint, in OpenSSH's own format."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".known_hosts"


def keys_beside(blueprint: Path) -> Path:
    """``pool.yaml`` has its keys in ``pool.known_hosts``."""
    return blueprint.with_suffix(SUFFIX)
