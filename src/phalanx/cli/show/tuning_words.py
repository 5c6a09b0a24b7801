"""What a search for the point of a switch tried and found, as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from rich.table import Table

from phalanx.core import words
from phalanx.plan.switch_search import BASELINE, SEARCH, SwitchSearch, SwitchTrial

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.cli.request.tuning_specs import Specs
    from phalanx.observe.summary.summary import Summary

MONOTONE = "This assumes that {} switch is never worse; not every point was tried."


@dataclass(frozen=True)
class Tried:
    """One run of the search."""

    stage: str
    strategy: str
    point: float
    seed: int
    value: float | None
    seconds: float | None
    epochs: int | None
    stopped_early: bool
    run: str
    simulated: bool = False

    @staticmethod
    def of(
        trial: SwitchTrial, specs: Specs, seed: int, summary: Summary, value: float | None
    ) -> Tried:
        from phalanx.report.load import train_seconds

        return Tried(
            stage=trial.stage,
            strategy=specs.of(trial.point),
            point=specs.share(trial.point),
            seed=seed + trial.seed,
            value=value,
            seconds=train_seconds(summary),
            epochs=summary.epochs,
            stopped_early=summary.status != "done",
            run=summary.run,
            simulated=summary.simulated,
        )


def print_tried(tried: Sequence[Tried], metric: str, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("stage", no_wrap=True)
    table.add_column("strategy", overflow="fold", min_width=13)
    for name in ("point", "seed", metric.replace("_", " "), "training"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in tried:
        notes = ["simulated"] * one.simulated
        notes += [f"ended at epoch {one.epochs}"] * one.stopped_early
        table.add_row(
            one.stage,
            one.strategy,
            f"{one.point:g}" if one.strategy != tried[0].strategy else "–",
            str(one.seed),
            figure(one.value, metric),
            words.seconds(one.seconds),
            ", ".join(notes),
        )
    console.print(table, soft_wrap=False)


def figure(value: float | None, metric: str) -> str:
    return words.share(value) if metric.endswith("accuracy") else words.loss(value)


def apart(behind: float, metric: str) -> str:
    """``0.12 points behind``, ``0.0021 ahead``."""
    size = abs(behind)
    number = words.points(size) if metric.endswith("accuracy") else words.loss(size)
    return f"{number} {'behind' if behind > 0 else 'ahead'}" if float(f"{size:.4f}") else "level"


def sentences(
    search: SwitchSearch, specs: Specs, tried: Sequence[Tried], metric: str
) -> Iterator[str]:
    """The verdict."""
    verdict, rules, base = search.verdict(), search.rules, specs.of(specs.grid)
    edge, more = ("latest", "an earlier") if specs.reverse else ("earliest", "a later")
    monotone = MONOTONE.format(more)
    limit = words.points(rules.tolerance) if metric.endswith("accuracy") else rules.tolerance
    if verdict.point is None:
        yield "The search is not finished: it has no verdict yet."
        return
    if verdict.point == rules.grid:
        yield f"No point is within {limit} of {base}: stay with --strategy {base}"
        yield monotone
        return
    spec = specs.of(verdict.point)
    yield (
        f"{spec} is the {edge} of {rules.grid} points within {limit} of {base}: "
        f"{apart(verdict.behind or 0.0, metric)}"
        f"{_times(spec, base, [t for t in tried if t.simulated] or tried)}."
    )
    real = [t for t in tried if not t.simulated] if tried[0].simulated else ()
    yield from _confirmation(search, spec, metric, _times(spec, base, real))
    yield (
        f"Finding it took {sum(t.stage in (BASELINE, SEARCH) for t in tried)} runs; trying "
        f"every point takes {rules.runs_of_the_grid}. {monotone}"
    )
    if verdict.confirmed is not False:
        yield f"Use it: --strategy {spec}"


def _confirmation(search: SwitchSearch, spec: str, metric: str, real: str) -> Iterator[str]:
    """``real``: the times of real runs, where those of the search were simulated."""
    verdict, confirm = search.verdict(), search.rules.confirm
    seeds = f"{confirm} fresh seed{'s' * (confirm != 1)}{' in real runs' * bool(real)}"
    if verdict.confirmed_behind is None and verdict.confirmed is False:
        yield f"NOT confirmed: with {seeds} a run of {spec} was clearly worse, or failed."
    elif verdict.confirmed_behind is None:
        yield "It is not confirmed by fresh seeds; --confirm 3 would do that."
    elif verdict.confirmed:
        yield f"Confirmed by {seeds}: {apart(verdict.confirmed_behind, metric)} on average{real}."
    else:
        yield (
            f"NOT confirmed: with {seeds} it is {apart(verdict.confirmed_behind, metric)} on "
            f"average. {'Virtual time misled it, or t' if real else 'T'}he first seed was lucky: "
            "try --seeds 3."
        )


def _times(spec: str, baseline: str, tried: Sequence[Tried]) -> str:
    """How long both trained, as a part of the sentence."""
    found = [[t.seconds for t in tried if t.strategy == s and t.seconds] for s in (spec, baseline)]
    if not all(found):
        return ""
    mine, theirs = (words.seconds(fmean(seconds)) for seconds in found)
    kind = " (virtual time)" * tried[0].simulated
    return f", in {mine} instead of {theirs}{kind}"
