"""``--explain``: one worker runs an adopted script up to its first steps; nothing is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from typing import TYPE_CHECKING

from phalanx.core.errors import DONE, InputError, RunStopped, ScriptError
from phalanx.core.script.explained import Explanation
from phalanx.core.terminal import printable

if TYPE_CHECKING:
    from phalanx.cli.output import Output
    from phalanx.cli.request.options import RunOptions
    from phalanx.cli.request.request import Request
    from phalanx.launch.run.observer import Observer


def refuse_beside_explain(framework: str | None, options: RunOptions) -> None:
    from phalanx.launch.frameworks.framework import KERAS_NAMES

    for option, given in (
        ("--framework", framework not in (None, *KERAS_NAMES)),
        ("--dry-run", options.dry_run),
        ("--detach", options.detach),
    ):
        if given:
            raise InputError(f"--explain and {option} cannot be combined", "Give one of them.")


def explain(request: Request, out: Output) -> Explanation:
    """Explain how the script would be adopted; raises the error that would refuse it."""
    import msgspec

    from phalanx.core.run_folder.run_paths import new_run
    from phalanx.launch.run.controller import execute

    if not request.adopt:
        return Explanation(joins=True, script=str(request.script))
    job = request.job("single", None)
    chosen = msgspec.structs.replace(
        job.settings, explain=True, checkpoint_epochs=0, checkpoint_minutes=None
    )
    paths = new_run(f"{request.name}-explain")
    try:
        job = dataclasses.replace(job, settings=chosen)
        outcome = execute(job, paths, explaining_observer(out))
        found = Explanation.read(paths.files) or Explanation()
        if found.complete or (outcome.exit_code == DONE and found.data is not None):
            return found
        if outcome.summary.status == "stopped":
            raise RunStopped
        raise outcome.error or ScriptError("the script ended before it trained")
    finally:
        shutil.rmtree(paths.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it has other runs
            paths.folder.parent.rmdir()


def explaining_observer(out: Output) -> Observer:
    """The script's own output is not shown, but what it failed with is."""
    from phalanx.launch.run.observer import Observer

    class Failures(Observer):
        def note(self, text: str) -> None:
            out.note(text)

        def failure(self, rank: int, line: str) -> None:
            out.errors.print(printable(line))

    return Failures()
