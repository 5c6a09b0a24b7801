"""Tables from names to code: imported lazily, extensible by plugins, with hints on unknown names.

An entry is ``"module:attribute"`` and is imported only when it is asked for, so that optional
parts cost nothing until they are named. Modules listed in ``$PHALANX_PLUGINS`` (comma separated)
are imported before the first look-up; their import registers what they add, in the controller
and in every worker alike.
"""

from __future__ import annotations

import difflib
import importlib
import os
import threading
from collections.abc import Iterable
from typing import Any

from phalanx.core.errors import InputError

PLUGINS_VARIABLE = "PHALANX_PLUGINS"


def did_you_mean(name: str, known: Iterable[str], most: int | None = None) -> str:
    """Return a sentence with the nearest known name, or with all (or the last ``most``) names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean '{near[0]}'?"
    return f"Known: {', '.join(names if most is None else names[-most:])}."


class Registry:
    """A table of lazily imported implementations of one kind."""

    def __init__(self, kind: str, entries: dict[str, str] | None = None) -> None:
        self.kind = kind
        self._entries = dict(entries or {})

    def add(self, name: str, target: str) -> None:
        """Register ``target`` (``"module:attribute"``) under ``name``."""
        self._entries[name] = target

    def names(self) -> list[str]:
        load_plugins()
        return sorted(self._entries)

    def __contains__(self, name: str) -> bool:
        load_plugins()
        return name in self._entries

    def get(self, name: str) -> Any:
        """Import and return the object registered under ``name``."""
        load_plugins()
        if name not in self._entries:
            raise InputError(f"unknown {self.kind} '{name}'", did_you_mean(name, self._entries))
        module, _, attribute = self._entries[name].partition(":")
        return getattr(importlib.import_module(module), attribute)


_plugins_lock = threading.RLock()
_plugins_loaded: set[str] = set()


def load_plugins() -> None:
    """Import the modules of ``$PHALANX_PLUGINS``, each once."""
    wanted = [n.strip() for n in os.environ.get(PLUGINS_VARIABLE, "").split(",") if n.strip()]
    with _plugins_lock:
        for name in wanted:
            if name in _plugins_loaded:
                continue
            _plugins_loaded.add(name)
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise InputError(
                    f"cannot import plugin '{name}': {error}",
                    f"Check {PLUGINS_VARIABLE} and that the module is on PYTHONPATH.",
                ) from error
