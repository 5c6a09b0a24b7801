"""``phalanx adapt``: the diff that makes an ordinary script call Phalanx itself."""

from __future__ import annotations

import difflib
import shutil
from typing import Annotated

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

Write = Annotated[
    bool, typer.Option("--write", help="Change the file; what it was is kept as FILE.orig.")
]


def adapt(
    ctx: typer.Context,
    script: o.Script,
    module: o.Module = False,
    write: Write = False,
    json: o.Json = False,
) -> int:
    """Print the diff that makes SCRIPT call Phalanx itself.

    A script without Phalanx trains as it is. This is for keeping it with join, batches and step
    written out. The script runs up to its first step, to see where these belong.
    """
    from phalanx.cli.adapt.refusals import refuse_what_is_hidden
    from phalanx.cli.adapt.rewriting import rewrite
    from phalanx.cli.request.explain_run import explain
    from phalanx.cli.request.request import check

    out = Output(json)
    request = check(o.RunOptions(json=json), script, ctx.obj, module=module)
    found = explain(request, out)
    file = request.script.parent / refuse_what_is_hidden(found).file
    edits = rewrite(found, file.read_bytes())
    compile(edits.after, str(file), "exec", dont_inherit=True)  # a defect of ours, if it fails
    lines = difflib.unified_diff(
        edits.before.splitlines(keepends=True),
        edits.after.splitlines(keepends=True),
        fromfile=str(file),
        tofile=str(file),
    )
    unended = "\n\\ No newline at end of file\n"
    diff = "".join(line if line.endswith("\n") else line + unended for line in lines)
    if not json:
        typer.echo(diff, nl=False)
    if write:
        kept = file.with_name(f"{file.name}.orig")
        if kept.exists():
            raise InputError(f"{kept} exists already", "Remove it, or leave --write out.")
        try:
            shutil.copy2(file, kept)
            file.write_bytes(edits.encoded())
        except OSError as error:
            raise InputError(
                f"cannot write {error.filename or file}: {error.strerror}",
                "Check the permissions, or leave --write out.",
            ) from error
        out.note(f"wrote {file}; what it was is in {kept}")
    out.result({"file": str(file), "diff": diff, "written": write})
    return 0
