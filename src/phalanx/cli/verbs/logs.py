"""``phalanx logs``: show what a worker printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError
from phalanx.core.terminal import line_as_shown

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths

POLL_SECONDS = 0.2
LONGEST_LINE = 1 << 20
"""The most bytes shown at once; a longer line is shown in parts."""


def logs(
    run: o.RunName = None,
    rank: Annotated[int, typer.Option(metavar="N", help="The worker, counted from 0.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the run ends (or Ctrl-C).")
    ] = False,
    json: o.Json = False,
) -> int:
    """Show the output of a worker."""
    from phalanx.cli.request.find_run import for_logs
    from phalanx.cli.request.values import check_at_least

    check_at_least("--rank", rank, 0)
    paths = for_logs(run)
    _check_rank(paths, rank)
    out = Output(json)
    lines = 0
    try:
        for line in _lines(paths, rank, follow):
            lines += 1
            for shown in line_as_shown(line):
                # Not through rich, which would wrap the line and take its colour codes for text.
                file = out.human.file
                file.write(shown + "\n")
                file.flush()
    except KeyboardInterrupt:
        if not follow:
            raise
    if not lines:
        out.note(f"worker {rank} of {paths.id} printed nothing")
    out.result({"run": paths.id, "rank": rank, "log": str(paths.log_of(rank)), "lines": lines})
    return 0


def _check_rank(paths: RunPaths, rank: int) -> None:
    if paths.log_of(rank).is_file():
        return
    names = [f.stem.removeprefix("rank-") for f in paths.logs.glob("rank-*.log") if f.is_file()]
    ranks = sorted(int(name) for name in names if name.isdecimal())
    if not ranks and paths.detached.exists():
        raise InputError(
            f"the logs of '{paths.id}' are still on its machines", f"Use phalanx attach {paths.id}"
        )
    if not ranks:
        raise InputError(f"run '{paths.id}' has no logs", "Start it again: no worker ran.")
    known = ", ".join(map(str, ranks))
    raise InputError(f"run '{paths.id}' has no rank {rank}", f"Use one of its ranks: {known}.")


def _lines(paths: RunPaths, rank: int, follow: bool) -> Iterator[str]:
    from phalanx.observe.summary.run_status import controller_alive

    with paths.log_of(rank).open("rb") as file:
        part = b""
        while True:
            # Check before reading: whatever the run wrote before this is then read below.
            alive = follow and controller_alive(paths)
            while line := file.readline(LONGEST_LINE - len(part)):
                part += line
                if part.endswith(b"\n") or len(part) >= LONGEST_LINE:
                    yield part.decode("utf-8", errors="replace")
                    part = b""
            if not alive:
                break
            time.sleep(POLL_SECONDS)
        if part:
            yield part.decode("utf-8", errors="replace")
