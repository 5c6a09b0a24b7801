"""Choose machines for a script with one of TensorFlow's own strategies, by short runs.

TensorFlow's exchange is not modelled, so it is measured: each machine alone, then the two fastest
together, the three fastest, …, until one more machine does not make the run faster.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from phalanx.cli.output import Output
from phalanx.cli.planning.plan_words import show_choice
from phalanx.cli.request.explain_run import explaining_observer
from phalanx.cli.request.options import RunOptions
from phalanx.cli.request.request import Request
from phalanx.cli.request.systems import framework_job, ready
from phalanx.core.errors import InputError, RunStopped
from phalanx.core.files import read_bounded
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.words import seconds
from phalanx.launch.frameworks.framework import MIRRORED, TENSORFLOW, Framework
from phalanx.launch.run.controller import execute
from phalanx.launch.worker.keras_figures import MEASURE, MEASURED, PATIENCE
from phalanx.plan.choice.decide import Choice, decide
from phalanx.plan.choice.objectives import Objectives
from phalanx.plan.prediction import Interval, Prediction

SECONDS = 10.0
LEAST_ERROR = 0.05
"""The least error of a measured step: even one machine's steps vary that much between hours."""


class MeasuredSteps(msgspec.Struct, frozen=True):
    """The figures that ``keras_figures.py`` writes in a measuring run."""

    step: float
    spread: float
    counted: int
    samples: float | None
    steps: int | None
    epochs: int
    start: float


def choose_by_runs(
    request: Request, framework: Framework, checked: Callable[[RunOptions], Request], out: Output
) -> Choice:
    """Measure, choose and show the machines; the strategy stays the script's own."""
    if framework.name != TENSORFLOW or framework.has_servers:
        raise InputError(
            f"Phalanx cannot choose machines for a script of {framework.system}: it measures steps"
            " of model.fit under MultiWorkerMirroredStrategy or on one machine",
            "Name the machines: phalanx run SCRIPT --framework NAME --machines all",
        )
    found: dict[tuple[str, ...], tuple[MeasuredSteps, Prediction]] = {}

    def measure(names: tuple[str, ...]) -> Prediction:
        narrowed = checked(replace(request.options, machines=",".join(names)))
        steps = _measured(narrowed, framework, out)
        found[names] = steps, _prediction(names, framework, steps)
        return found[names][1]

    alone = [measure((machine.name,)) for machine in request.machines]
    alone.sort(key=lambda each: each.seconds.value)
    best = {1: alone[0]}
    for size in range(2, len(alone) + 1) if framework.system == MIRRORED else ():
        best[size] = measure(tuple(each.machines[0] for each in alone[:size]))
        if best[size].seconds.value >= best[size - 1].seconds.value:
            break
    chosen = decide(best, Objectives())
    ranked = sorted([*best.values(), *alone[1:]], key=lambda each: each.seconds.value)
    reasons = _reasons(chosen, best, [machine.name for machine in request.machines])
    batches = {steps.samples for steps, _ in found.values() if steps.samples}
    if len({round(batch) for batch in batches}) > 1:
        reasons.append(
            f"the script's global batch grows with the workers ({min(batches):.0f} to"
            f" {max(batches):.0f} samples a step), so more machines also change what is learnt"
        )
    choice = Choice(chosen=chosen, ranked=ranked, unknown=[], reasons=reasons)
    show_choice(choice, Objectives(), out)
    return choice


def _measured(request: Request, framework: Framework, out: Output) -> MeasuredSteps:
    """Return the figures of a run that ends after some steps, in a temporary folder."""
    out.note(f"measuring steps on {', '.join(m.name for m in request.machines)}")
    variables = {**framework.variables, MEASURE: str(SECONDS)}
    measuring = msgspec.structs.replace(framework, variables=variables)
    job = ready(framework_job(request, measuring, request.script, request.options.batch), out)
    folder = Path(mkdtemp(prefix="phalanx-measure-"))
    try:
        paths = RunPaths(folder / f"measure-{secrets.token_hex(4)}").make()
        outcome = execute(replace(job, fleet=replace(job.fleet, detach=False)), paths,
                          explaining_observer(out))  # fmt: skip
        if outcome.summary.status == "stopped":
            raise RunStopped
        if outcome.error is not None:
            raise outcome.error
        steps = _read(paths.files / MEASURED)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if steps.steps is None:
        raise InputError(
            "the data do not say how many batches an epoch has",
            "Give fit steps_per_epoch, or the dataset its length.",
        )
    return steps


def _read(path: Path) -> MeasuredSteps:
    try:
        return msgspec.json.decode(read_bounded(path), type=MeasuredSteps)
    except (OSError, msgspec.MsgspecError):
        raise InputError(
            f"the script ended, or ran for {seconds(PATIENCE * SECONDS)}, without enough steps of"
            " model.fit",
            "Only model.fit is measured. Name the machines: --machines all, without auto.",
        ) from None


def _prediction(names: Sequence[str], framework: Framework, found: MeasuredSteps) -> Prediction:
    error = max(LEAST_ERROR, 2.0 * found.spread / max(found.step, 1e-9) / found.counted**0.5)
    training = found.epochs * (found.steps or 0) * found.step
    several = len(names) > 1
    return Prediction(
        machines=list(names),
        workers=len(names),
        strategy=framework.system if several else "single",
        shares=[1 / len(names)] * len(names),
        step=Interval.around(found.step, error),
        samples_per_second=Interval.around((found.samples or 0.0) / found.step, error),
        seconds=Interval.around(found.start + training, error),
        limit="starting" if found.start > training else "training",
    )


def _reasons(chosen: Prediction, best: dict[int, Prediction], every: Sequence[str]) -> list[str]:
    names, took = " and ".join(chosen.machines), seconds(chosen.seconds.value)
    said = [f"{names}: {took}, measured by short runs, without evaluation and saving"]
    alone, largest = best[1], best[max(best)]
    if len(chosen.machines) == 1 and len(best) > 1:
        said.append(
            f"do not distribute this: {' and '.join(best[2].machines)} together need"
            f" {seconds(best[2].seconds.value)}"
        )
    elif len(chosen.machines) > 1:
        times = alone.seconds.value / chosen.seconds.value
        said.append(f"{times:.2f} times as fast as {alone.machines[0]} alone")
    if len(largest.machines) < len(every) and len(best) > 1:
        said.append(
            f"more than {len(largest.machines)} machines were not tried: one more did not make"
            " the run faster"
        )
    said.append("the strategy is the script's own; --framework keras plans Phalanx's strategies")
    return said
