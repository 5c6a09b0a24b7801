"""``phalanx runs``: what was run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli import options as o

if TYPE_CHECKING:
    from rich.table import Table

    from phalanx.cli.output import Output
    from phalanx.core.run_paths import RunPaths

STYLES = {"done": "green", "running": "cyan", "stopped": "yellow", "failed": "red", "lost": "red"}
FIELDS = ("run", "status", "strategy", "workers", "seconds", "test_accuracy")


def runs(
    limit: Annotated[int, typer.Option(metavar="N", help="Show the newest N.")] = 20,
    json: o.Json = False,
) -> int:
    """List the runs, newest last."""
    from phalanx.cli.output import Output
    from phalanx.cli.request import check_at_least
    from phalanx.core.run_paths import list_runs, runs_home

    check_at_least("--limit", limit, 1)
    out = Output(json)
    every = list_runs()
    rows = [_row(paths) for paths in every[-limit:]]
    if rows:
        _print(_table(rows), out)
    else:
        out.say(f"there are no runs in {runs_home()}; start one: phalanx demo")
    if len(every) > len(rows):
        out.note(f"{len(every) - len(rows)} older: --limit {len(every)} shows all")
    out.result({"runs": rows})
    return 0


def _row(paths: RunPaths) -> dict[str, Any]:
    from phalanx.cli.find import study_runs, summary_of
    from phalanx.observe.records import LaunchRecord, read_record

    if paths.study.exists():
        count = len(study_runs(paths))
        words = f"{count} run{'s' * (count != 1)}"
        known = {"run": paths.id, "status": "study", "strategy": words}
        return dict.fromkeys((*FIELDS, "resumes")) | known
    summary = summary_of(paths)
    launch = read_record(paths.launch, LaunchRecord) or LaunchRecord()
    return {name: getattr(summary, name) for name in FIELDS} | {"resumes": launch.resumes}


def _print(table: Table, out: Output) -> None:
    """Ids are for copying: a line that is too long is the terminal's to wrap, never cut."""
    from rich.measure import Measurement

    console = out.human
    needed = Measurement.get(console, console.options.update(width=1000), table).maximum
    console.width = max(console.width, needed)
    console.print(table, crop=False, soft_wrap=False)


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from phalanx.cli.words import clock
    from phalanx.core.terminal import printable
    from phalanx.report.words import share

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    for name in ("run", "status", "strategy"):
        table.add_column(name, no_wrap=True)
    for name in ("workers", "elapsed", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    resumed = any(row["resumes"] for row in rows)
    if resumed:
        table.add_column("went on from", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(printable(row["run"])),
            Text(printable(row["status"]), style=STYLES.get(row["status"], "dim")),
            Text(printable(row["strategy"] or "")),
            "" if row["workers"] is None else str(row["workers"]),
            "" if row["seconds"] is None else clock(row["seconds"]),
            "" if row["test_accuracy"] is None else share(row["test_accuracy"]),
            *([Text(printable(row["resumes"] or ""), style="dim")] if resumed else []),
        )
    return table
