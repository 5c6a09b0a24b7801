"""The pages of ``phalanx watch``: feeds made from a run's files, and a server on loopback.

``phalanx.watch(run)`` shows a run in a notebook. This module is that function as well, because a
package becomes an attribute of the one around it as soon as a part of it is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.watch.notebook import RunPanel


class _Watch(ModuleType):
    def __call__(self, run: str | Path | None = None) -> RunPanel | None:
        """Show a run in a notebook, in place, until it ends or the cell is interrupted.

        ``run``: an id, a unique part of one, or a folder; the newest run by default. In Jupyter and
        marimo the cell shows it; elsewhere the result is an object that notebooks show as HTML.
        """
        from phalanx.watch.notebook import show

        return show(run)


sys.modules[__name__].__class__ = _Watch
