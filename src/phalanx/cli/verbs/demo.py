"""``phalanx demo``: compare strategies on data that come with the package."""

from __future__ import annotations

from pathlib import Path

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import DONE

STRATEGIES = ["single", "allreduce", "async", "switch:at=0.5"]
WORKERS = 2
NEXT = """\
Next, your own script, as it is:
        phalanx compare train.py --workers 2"""


def demo(ctx: typer.Context, dry_run: o.DryRun = False, json: o.Json = False) -> int:
    """Compare four strategies on handwritten digits, on this machine."""
    from phalanx.cli.request.request import check
    from phalanx.cli.verbs.compare import compare_checked

    script = Path(__file__).parents[2] / "demos" / "digits.py"
    options = o.RunOptions(workers=WORKERS, name="demo", dry_run=dry_run, json=json)
    code = compare_checked(check(options, script, ctx.obj), STRATEGIES, [None])
    if code == DONE and not dry_run:
        Output(json).say(NEXT)
    return code
