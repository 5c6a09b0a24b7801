"""What past runs say to who plans the next: accuracies of the same script, and kept promises."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.files import read_bounded
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.spec import parse_spec
from phalanx.observe.summary.run_records import LaunchRecord, read_record
from phalanx.observe.summary.summary_fields import Summary
from phalanx.plan.choice.evidence import Pair, PredictedRun
from phalanx.plan.cost.model import is_same_mathematics

MOST_RUNS = 300
"""The newest that are looked at: a plan should not wait for the rest."""


@dataclass(frozen=True)
class PastRun:
    script: str
    """A digest."""
    ground: tuple[object, ...]
    """What has to be equal in a pair: arguments, data, epochs, batch, precision."""
    summary: Summary

    @property
    def accuracy(self) -> float | None:
        found = self.summary.test_accuracy
        return self.summary.validation_accuracy if found is None else found


def past_runs(home: Path) -> list[PastRun]:
    """Those that were done, the oldest first."""
    try:
        folders = sorted((f for f in home.iterdir() if f.is_dir()), key=lambda f: f.name)
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
        summary, launch = (
            read_record(paths.summary, Summary),
            read_record(paths.launch, LaunchRecord),
        )
    except InputError:  # larger than anything that is ours
        return None
    if summary is None or launch is None or launch.script is None or summary.status != "done":
        return None
    data = tuple((d.name, d.samples, tuple(sorted(d.checksums.items()))) for d in summary.data)
    epochs, precision = summary.epochs, summary.precision
    ground = (tuple(launch.arguments), data, epochs, summary.batch, precision)
    return PastRun(digest_of(paths.source / Path(launch.script).name), ground, summary)


def pairs_of(runs: Sequence[PastRun], script: Path, arguments: Sequence[str]) -> list[Pair]:
    """Runs of the same script, data and seed, one with the mathematics of one process."""
    digest = digest_of(script)
    ours = [r for r in runs if digest and r.script == digest and r.ground[0] == tuple(arguments)]
    known = [run for run in ours if run.accuracy is not None and run.summary.strategy]
    baselines = {(r.ground, r.summary.seed): r for r in known if _is_plain(r.summary.strategy)}
    return list(_paired(known, baselines))


def _paired(
    runs: Sequence[PastRun], baselines: dict[tuple[tuple[object, ...], int | None], PastRun]
) -> Iterator[Pair]:
    for run in runs:
        summary, baseline = run.summary, baselines.get((run.ground, run.summary.seed))
        if baseline is None or _is_plain(summary.strategy):
            continue
        before, after = baseline.accuracy, run.accuracy
        if summary.strategy and before is not None and after is not None:
            workers, seed = summary.workers or 1, summary.seed or 0
            yield Pair(summary.strategy, workers, seed, before, after)


def outcomes_of(runs: Sequence[PastRun]) -> list[PredictedRun]:
    """Runs that were predicted, with what became of it."""
    found = []
    for run in runs:
        summary, predicted = run.summary, run.summary.predicted
        rate, expected = summary.samples_per_second, predicted.get("samples_per_second")
        if rate and expected and summary.strategy:
            raw = expected * (predicted.get("factor") or 1.0)
            names = tuple(machine.name for machine in summary.machines)
            found.append(PredictedRun(names, _name(summary.strategy), raw / rate))
    return found


def _is_plain(strategy: str | None) -> bool:
    try:
        return strategy is not None and is_same_mathematics(parse_spec(strategy))
    except InputError:  # another version's
        return False


def _name(strategy: str) -> str:
    return strategy.partition(":")[0].partition("+")[0].partition("@")[0]
