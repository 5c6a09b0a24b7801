"""``phalanx pool convert``: a blueprint of the old form becomes one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import DONE, InputError


def convert(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The blueprint to convert.")],
    out: o.Out = Path("pool.yaml"),
    json: o.Json = False,
) -> int:
    """Read a blueprint of the old form ("connections"), and write it as YAML.

    Missing commas, and yes or no without quotes, are mended, and that is said.

    Example: phalanx pool convert blueprint.json --out pool.yaml
    """
    from phalanx.core.files import write_asked
    from phalanx.pool.old_blueprint import convert as converted

    if out.exists():
        raise InputError(f"{out} already exists", "Give another --out, or remove it first.")
    output, found = Output(json), converted(old)
    for note in found.mended:
        output.note(f"warning: {old}: {note}")
    write_asked(out, found.text)
    output.say(found.text.rstrip())
    output.say(f"\nwritten to {out}; next: phalanx pool check {out}")
    output.result({"file": str(out), "mended": found.mended})
    return DONE
