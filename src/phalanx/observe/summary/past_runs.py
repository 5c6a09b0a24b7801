"""Past runs as evidence for a plan: accuracies of the same script, and errors of predictions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.files import read_bounded
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.spec import EQUAL_SHARES, Spec, parse_spec
from phalanx.observe.summary.run_records import LaunchRecord, read_record
from phalanx.observe.summary.summary_fields import Summary
from phalanx.plan.choice.evidence import Losses
from phalanx.plan.cost.model import is_same_mathematics

MOST_RUNS = 300
"""How many of the newest runs are read: a plan should not wait for the rest."""


@dataclass(frozen=True)
class PastRun:
    script: str
    """A digest of the script."""
    ground: tuple[object, ...]
    """What compared runs must share: arguments, data, epochs, batch, precision, virtual time."""
    summary: Summary

    @property
    def accuracy(self) -> float | None:
        found = self.summary.test_accuracy
        return self.summary.validation_accuracy if found is None else found

    @property
    def spec(self) -> Spec | None:
        try:
            return parse_spec(self.summary.strategy or "")
        except InputError:  # another version's
            return None

    @property
    def is_plain(self) -> bool:
        """Whether the run is plain: it computed the same as one process would."""
        return self.spec is not None and is_same_mathematics(self.spec)


def past_runs(home: Path) -> list[PastRun]:
    """Return the finished past runs, the oldest first."""
    try:
        folders = sorted(folder for folder in home.iterdir() if folder.is_dir())
    except OSError:
        return []
    return [run for folder in folders[-MOST_RUNS:] if (run := _read(RunPaths(folder))) is not None]


def digest_of(script: Path) -> str:
    try:
        return hashlib.sha256(read_bounded(script)).hexdigest()
    except (OSError, InputError):
        return ""


def _read(paths: RunPaths) -> PastRun | None:
    try:
        summary = read_record(paths.summary, Summary)
        launch = read_record(paths.launch, LaunchRecord)
    except InputError:  # larger than any record of Phalanx
        return None
    if summary is None or launch is None or launch.script is None or summary.status != "done":
        return None
    data = tuple((d.name, d.samples, tuple(sorted(d.checksums.items()))) for d in summary.data)
    ground = tuple(launch.arguments), data, summary.epochs, summary.batch, summary.precision
    digest = digest_of(paths.source / Path(launch.script).name)
    return PastRun(digest, (*ground, summary.simulated), summary)


def losses_of(runs: Sequence[PastRun], script: Path, arguments: Sequence[str]) -> Losses:
    """Return strategies' losses of accuracy, each against a plain run with the same seed."""
    digest = digest_of(script)
    ours = [r for r in runs if digest and r.script == digest and r.ground[0] == tuple(arguments)]
    known = [(r, r.summary, r.accuracy) for r in ours if r.accuracy is not None]
    baselines = {(r.ground, found.seed): value for r, found, value in known if r.is_plain}
    losses: dict[tuple[str, int], dict[int, float]] = {}
    for run, found, value in known:
        baseline = baselines.get((run.ground, found.seed))
        if run.spec is not None and baseline is not None and not run.is_plain:
            # The strategy's name as the planner writes it: ps is async.
            whole = run.spec.text.replace(EQUAL_SHARES, "")
            name = run.spec.phases[0].label if len(run.spec.phases) == 1 else whole
            by_seed = losses.setdefault((name, found.workers or 1), {})
            by_seed[found.seed or 0] = baseline - value
    return losses


def outcomes_of(runs: Sequence[PastRun]) -> Iterator[tuple[list[str], str, float]]:
    """Yield for each predicted run its machines, its strategy, and measured ÷ predicted seconds."""
    for run in runs:
        summary, predicted = run.summary, run.summary.predicted
        rate, expected = summary.samples_per_second, predicted.get("samples_per_second")
        if rate and expected and run.spec is not None:
            raw = expected * (predicted.get("factor") or 1.0)
            names = [machine.name for machine in summary.machines]
            yield names, run.spec.phases[0].name, raw / rate
