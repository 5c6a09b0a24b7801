"""``phalanx runs``: list the runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths

FIELDS = ("run", "status", "strategy", "workers", "seconds", "test_accuracy")


def runs(
    limit: Annotated[int, typer.Option(metavar="N", help="Show the newest N.")] = 20,
    json: o.Json = False,
) -> int:
    """List the runs, newest last."""
    from phalanx.cli.request.values import check_at_least
    from phalanx.core.run_folder.run_paths import list_runs, runs_home

    check_at_least("--limit", limit, 1)
    out = Output(json)
    every = list_runs()
    rows = [_row_or_warning(paths, out) for paths in every[-limit:]]
    if rows:
        # A pipe has no width: every line then has its run's id, also for tools such as grep.
        from phalanx.cli.show.run_lines import run_lines

        limited = out.human.is_terminal or "COLUMNS" in os.environ
        for line in run_lines(rows, out.human.width if limited else sys.maxsize):
            out.human.print(line)
    else:
        out.say(f"there are no runs in {runs_home()}; start one: phalanx demo")
    if len(every) > len(rows):
        out.note(f"{len(every) - len(rows)} older: --limit {len(every)} shows all")
    out.result({"runs": rows})
    return 0


def _row_or_warning(paths: RunPaths, out: Output) -> dict[str, Any]:
    """Return the row of a run; a folder that cannot be read gives a warning and no error."""
    from phalanx.cli.request.find_run import study_runs, summary_of
    from phalanx.observe.summary.run_records import LaunchRecord, read_record

    try:
        if paths.study.exists():
            count = len(study_runs(paths))
            words = f"{count} run{'s' * (count != 1)}"
            known = {"run": paths.id, "status": "study", "strategy": words}
            return dict.fromkeys((*FIELDS, "resumes")) | known
        summary = summary_of(paths)
        launch = read_record(paths.launch, LaunchRecord) or LaunchRecord()
        return {name: getattr(summary, name) for name in FIELDS} | {"resumes": launch.resumes}
    except InputError as error:
        out.note(f"warning: {error.cause}")
        return dict.fromkeys((*FIELDS, "resumes")) | {"run": paths.id, "status": "unreadable"}
