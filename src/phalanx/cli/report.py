"""``phalanx report``: what a run or a study came to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli import options as o


def report(
    run: o.RunName = None,
    bundle: Annotated[
        bool,
        typer.Option("--bundle", help="Also pack script, versions, checksums and command."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the bundle goes.")
    ] = None,
    json: o.Json = False,
) -> int:
    """Write the report of a run or a study again; say where it is."""
    from phalanx.cli.find import for_report
    from phalanx.cli.output import Output
    from phalanx.cli.verdict import tell_study
    from phalanx.core.errors import InputError

    if output is not None and not bundle:
        raise InputError("--output is where the bundle goes", "Add --bundle.")
    paths = for_report(run)
    out = Output(json)
    written = tell_study(paths, out)
    result = {"run": paths.id, "report": str(written), "bundle": None}
    if bundle:
        from phalanx.report.bundle import write_bundle

        target = output or paths.folder / f"{paths.id}.tar.gz"
        # A link is followed only where the user named it.
        write_bundle(paths, written, target.resolve() if output else target)
        result["bundle"] = str(target)
        out.say(f"bundle  {result['bundle']}")
    out.result(result)
    return 0
