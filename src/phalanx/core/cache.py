"""Where this machine keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "phalanx"
