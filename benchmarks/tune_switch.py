"""``python -m benchmarks tune-switch``: runs that the search needs, against a grid of 10.

On the Fashion-MNIST MLP, five epochs. What was found is kept in the folder: with the same
settings it is told again, not searched again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, report
from benchmarks.whole_runs import Results, forget, run_phalanx

SCRIPT = ROOT / "examples" / "fashion_mlp.py"
SETTINGS = ("workers", "epochs", "grid", "seeds", "confirm", "tolerance", "seed")


def main(words: list[str]) -> None:
    chosen = _parse(words)
    results = Results(chosen.folder / "results.jsonl")
    key = {name: getattr(chosen, name) for name in SETTINGS}
    found = results.find(key)
    if found is None:
        found = {**key, **_search(chosen)}
        results.add(found)
    _report(found)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks tune-switch")
    for name, value in (("workers", 2), ("epochs", 5), ("grid", 10), ("seeds", 1), ("confirm", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=0.3, help="points of accuracy")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "tune-switch")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all of it")
    return parser.parse_args(words)


def _search(chosen: argparse.Namespace) -> dict[str, Any]:
    words = ["tune-switch", str(SCRIPT), "--batch", "128", "--balance", "off"]
    for name in SETTINGS:
        words += [f"--{name}", str(getattr(chosen, name))]
    runs = chosen.folder / "runs"
    found = run_phalanx(words, runs, chosen.limit)
    forget(runs)
    return {"found": {k: v for k, v in found.items() if k not in ("study", "report")}}


def _report(row: dict[str, Any]) -> None:
    found = row["found"]
    used, grid = found["runs_to_find"], found["runs_of_the_grid"]
    report(
        "tune-switch, runs to find the point, the synchronous ones included",
        value=used,
        bar=f"< {grid / 2:g}",
        grid=grid,
        point=found["point"],
        spec=found["spec"],
        behind_points=_points(found["behind"]),
    )
    confirming = [one for one in found["tried"] if one["stage"] not in ("baseline", "search")]
    report(
        f"tune-switch, confirmed by {row['confirm']} more seeds",
        value=found["confirmed"],
        bar="true",
        behind_points=_points(found["confirmed_behind"]),
        runs=len(confirming),
        values=[one["value"] for one in confirming],
    )


def _points(behind: float | None) -> float | None:
    return None if behind is None else 100 * behind
