"""Which ready-made data sets a worker of this machine would find, or could download."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.agent.frames import field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.agent.agent import Agent

SECONDS = 5.0


def datasets(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """``{files: {name: […]}, homes: {name: […]}, folder}`` → ``{missing, reached}``.

    ``folder`` is where this machine's data are, by the blueprint; without it they are looked for
    as a worker would. ``reached`` are those of the missing ones of which a home answers.
    """
    files, homes = field(request, "files", dict), field(request, "homes", dict)
    named = field(request, "folder", str, "")
    missing = [name for name, wanted in files.items() if not _has(named, str(name), wanted)]
    reached = [name for name in missing if any(map(_answers, homes.get(name, [])))]
    return {"missing": missing, "reached": reached}


def _has(named: str, name: str, files: Sequence[str]) -> bool:
    for folder in _places(named, name):
        found = [any((folder / (f + end)).is_file() for end in ("", ".gz")) for f in files]
        if all(found) and (found or folder.is_dir()):
            return True
    return False


def _places(named: str, name: str) -> list[Path]:
    if named:
        return [Path(named).expanduser() / name, Path(named).expanduser()]
    home = os.environ.get("PHALANX_DATA")
    if home:
        return [Path(home).expanduser() / name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return [cache / "phalanx" / "datasets" / name]


def _answers(home: Any) -> bool:
    """Whatever it answers: the loader, which looks for proxies as this does, says what is wrong."""
    try:
        asked = urllib.request.Request(str(home), method="HEAD")
        urllib.request.urlopen(asked, timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


HANDLERS = {"datasets": datasets}
SLOW = ("datasets",)
