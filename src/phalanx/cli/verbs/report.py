"""``phalanx report``: write the report of a run or a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths


def report(
    runs: o.RunNames = None,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Also pack script, versions, checksums and command.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write the bundle to.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print what their steps consist of, by operator.")
    ] = False,
    json: o.Json = False,
) -> int:
    """Write the report of a run, a study or several runs again, and print its path."""
    from phalanx.cli.request.find_run import for_report
    from phalanx.cli.show.result_lines import tell_profiles, tell_study

    if output is not None and not bundle:
        raise InputError("--output needs --bundle", "Add --bundle.")
    named: list[str | None] = [*runs] if runs else [None]
    paths = for_report(named[0]) if len(named) == 1 else _together(named)
    out = Output(json)
    if profile:
        tell_profiles(paths, out)
    written = tell_study(paths, out)
    result = {"run": paths.id, "report": str(written), "bundle": None}
    if bundle:
        from phalanx.report.bundle import write_bundle

        target = output or paths.folder / f"{paths.id}.tar.gz"
        # A symbolic link is followed only if the user named it.
        write_bundle(paths, written, target.resolve() if output else target)
        result["bundle"] = str(target)
        out.say(f"bundle  {result['bundle']}")
    out.result(result)
    return 0


def _together(names: Sequence[str | None]) -> RunPaths:
    """Make a new study of runs that were started one by one."""
    from phalanx.cli.request.find_run import for_report, study_runs
    from phalanx.cli.request.study import Study
    from phalanx.core.run_folder.run_paths import new_run, runs_home
    from phalanx.observe.summary.run_records import LaunchRecord, read_record

    named = [for_report(name) for name in names]
    runs = [run for one in named for run in (study_runs(one) if one.study.exists() else [one])]
    home = runs_home().resolve()
    for run in runs:
        if run.folder.resolve().parent != home:
            raise InputError(f"{run.folder} is not in {home}", "Give runs of one folder only.")
    ids = list(dict.fromkeys(run.id for run in runs))
    first = read_record(runs[0].launch, LaunchRecord) or LaunchRecord()
    command = ["phalanx", "report", *ids]
    study = Study(new_run("report-study"), command, first.script or "", repeat=1, runs=ids)
    study.write()
    return study.paths
