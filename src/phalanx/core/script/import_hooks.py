"""Calls functions with a module as soon as the script has imported it."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportHooks(MetaPathFinder):
    """Calls hooks after the script imports certain modules; imports none of them itself."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[ModuleType], None]] = {}
        self._asking = threading.local()
        self.seconds: dict[str, float] = {}
        """How long the imports of the modules took."""

    def add(self, name: str, hook: Callable[[ModuleType], None]) -> None:
        if name in sys.modules:
            hook(sys.modules[name])
            return
        self._waiting[name] = hook
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._waiting or getattr(self._asking, "name", None) == name:
            return None
        self._asking.name = name
        try:
            spec = importlib.util.find_spec(name)  # by all the others
        finally:
            self._asking.name = None
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                began = time.perf_counter()
                plain(module)
                self.seconds[name] = time.perf_counter() - began
                # Only after the import: code may just ask whether a module exists.
                hook = self._waiting.pop(name, None)
                if hook is not None:
                    hook(module)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
        return spec


HOOKS = ImportHooks()
"""The import hooks of this process."""
