"""``--watch`` of ``run`` and ``compare``: the pages, for as long as the command takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from phalanx.cli.output import Output

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths


@contextlib.contextmanager
def watched(wanted: bool, out: Output, run: RunPaths | None = None) -> Iterator[None]:
    """Within the ``with`` block, serve the pages if they are wanted, from a thread of its own."""
    if not wanted:
        yield
        return
    from phalanx.cli.watch.watch import fragment, tell_address, tell_next
    from phalanx.core.run_folder.run_paths import runs_home
    from phalanx.watch.server import WatchServer

    home = runs_home() if run is None else run.folder.absolute().parent
    server = WatchServer(home, partial(tell_next, out), out.note, start=fragment(run))
    with server.serving():
        tell_address(server, out)
        yield
    out.say(f"watch   phalanx watch --port {server.port}{f' {run.id}' if run else ''}")
