"""``--explain``: one worker runs an adopted script up to its first steps; nothing is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from phalanx.cli.output import Output
from phalanx.cli.request.options import RunOptions
from phalanx.cli.request.request import Request
from phalanx.core import words
from phalanx.core.errors import DONE, InputError, RunStopped, ScriptError
from phalanx.core.run_folder.run_paths import new_run
from phalanx.core.script.explained import Explanation, FoundData, FoundModel, FoundOptimizer, Place
from phalanx.core.terminal import printable
from phalanx.launch.frameworks.framework import KERAS_NAMES
from phalanx.launch.run.controller import execute
from phalanx.launch.run.observer import Observer


def refuse_beside_explain(framework: str | None, options: RunOptions) -> None:
    for option, given in (
        ("--framework", framework not in (None, *KERAS_NAMES)),
        ("--dry-run", options.dry_run),
        ("--detach", options.detach),
    ):
        if given:
            raise InputError(f"--explain and {option} cannot be combined", "Give one of them.")


def explain(request: Request, out: Output) -> Explanation:
    """Explain how the script would be adopted; raise the error if it would be refused."""
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
        with contextlib.suppress(OSError):  # the folder has other runs
            paths.folder.parent.rmdir()


def explaining_observer(out: Output) -> Observer:
    """Return an observer that shows notes and failures, but not the script's own output."""

    class Failures(Observer):
        def note(self, text: str) -> None:
            out.note(text)

        def failure(self, rank: int, line: str) -> None:
            out.errors.print(printable(line))

    return Failures()


_WIDTH = 80
_LABEL = 12
_LOSSES = {
    "mean": "a mean over the batch",
    "sum": "a sum over the batch",
    "weighted mean": "a weighted mean: it counts by its weights, not by its samples",
    "other": "neither a mean nor a sum over the batch; --loss mean declares it one",
    None: "seen at the first batch",
}


def lines(found: Explanation, script: Path) -> Iterator[str]:
    if found.joins:
        yield f"{script} calls Phalanx itself: nothing of it is adopted."
        return
    yield f"{script} is adopted as it is:"
    for number, model in enumerate(found.models):
        yield from _entry("" if number else "models", _model(model))
    for number, optimizer in enumerate(found.optimizers):
        yield from _entry("" if number else "optimizers", _optimizer(optimizer))
    if found.data is not None:
        yield from _entry("data", _data(found.data))
    passes = "known only to the script" if found.epochs is None else words.count(found.epochs)
    yield from _entry("epochs", passes)
    yield from _entry("loss", _LOSSES.get(found.loss, str(found.loss)))
    yield from _entry("schedulers", ", ".join(found.schedulers) or "none found")
    yield from _entry("evaluation", found.evaluation)
    for number, difference in enumerate(found.differences):
        yield from _entry("" if number else "not as alone", difference)
    for number, refused in enumerate(found.refused):
        yield from _entry("" if number else "refused", f"with several workers: {refused}")


def _entry(label: str, text: str) -> Iterator[str]:
    """Yield lines: ``label`` on the first one, and the wrapped text beside it."""
    wrapped = textwrap.wrap(text, _WIDTH - _LABEL - 4, break_long_words=False)
    for number, line in enumerate(wrapped or [""]):
        yield f"  {'' if number else label:<{_LABEL}}  {line}"


def _model(model: FoundModel) -> str:
    text = f"{model.kind}, {words.count(model.parameters)} parameters"
    if model.name is None or model.place is None:
        return f"{text}, found by its parameters"
    where = f"{model.place.function}() of {model.place.file}"
    return f"{text}: '{model.name}' in {where if model.place.function else model.place.file}"


def _optimizer(optimizer: FoundOptimizer) -> str:
    rate = "" if optimizer.rate is None else f", learning rate {optimizer.rate:g}"
    return f"{optimizer.kind}{rate}{_at(optimizer.place, 'made at')}"


def _data(data: FoundData) -> str:
    order = "shuffled" if data.shuffled else "not shuffled"
    inside = f" (inside {data.library})" if data.library else ""
    return (
        f"{data.kind}, {words.count(data.samples)} samples, {order}: global batch {data.batch}, "
        f"{words.count(data.batches)} batches per epoch{_at(data.place, 'loop at')}{inside}"
    )


def _at(place: Place | None, how: str) -> str:
    return "" if place is None else f", {how} {place.file}:{place.line}"
