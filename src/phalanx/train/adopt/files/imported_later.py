"""Something is done to a module as soon as the script has imported it, and not for its sake."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Change = Callable[[ModuleType], None]


def when_imported(name: str, change: Change) -> None:
    """At once, if it is imported already."""
    module = sys.modules.get(name)
    if module is not None:
        change(module)
        return
    _finder.waiting[name] = change
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: dict[str, Change] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self.waiting.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)  # by all the others: nothing waits for it any more
        if spec is not None and spec.loader is not None:
            _change_after(spec.loader, change)
        return spec


def _change_after(loader: Loader, change: Change) -> None:
    plain = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        plain(module)
        change(module)

    setattr(loader, "exec_module", exec_module)  # noqa: B010


_finder = _Finder()
