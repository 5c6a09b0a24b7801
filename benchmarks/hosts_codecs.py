"""``python -m benchmarks hosts-codecs``: time to 97 % on MNIST, by strategy, codec and link.

Two machines, one worker on each. Resumable: a finished cell is a line of ``results.jsonl`` in
the folder and is not run again. Needs root, for the lab.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.hosts_teams import Failed, Keys, Member, Team
from benchmarks.scripts.hosts_codecs import PARTS
from benchmarks.whole_runs import Results
from phalanx.lab.lab import Lab

STRATEGIES = ("allreduce", "async", "localsgd:every=8", "ssp:bound=3")
CODECS = ("none", "fp16", "int8", "topk:ratio=0.01")
RATES = ("100mbit", "1gbit")
MACHINES = ("m1", "m2")
SCRIPT = "benchmarks/scripts/hosts_codecs.py"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Cell:
    rate: str
    strategy: str
    codec: str
    target: float

    @property
    def key(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "strategy": self.strategy,
            "codec": self.codec,
            "target": self.target,
        }

    @property
    def spec(self) -> str:
        return self.strategy if self.codec == "none" else f"{self.strategy}+{self.codec}"


def main(words: list[str]) -> None:
    chosen = _parse(words)
    results, failures = Results(chosen.folder / "results.jsonl"), 0
    for rate in chosen.rates.split(","):
        cells = [Cell(rate, s, c, chosen.target) for s in STRATEGIES for c in CODECS]
        missing = [cell for cell in cells if results.find(cell.key) is None]
        if missing and not chosen.table:
            failures += _measure(missing, rate, results, chosen)
    for rate in chosen.rates.split(","):
        print("\n".join(table(results, rate, chosen.target)), flush=True)
    if failures:
        raise SystemExit(f"{failures} cells failed; the others are noted and will not be repeated")


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts-codecs")
    parser.add_argument("--target", type=float, default=0.97, help="test accuracy")
    parser.add_argument("--epochs", type=int, default=6, help="at most, for a cell")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of training, at most")
    parser.add_argument("--rates", default=",".join(RATES), help="of the links, with commas")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "hosts-codecs")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    return parser.parse_args(words)


def _measure(cells: list[Cell], rate: str, results: Results, chosen: argparse.Namespace) -> int:
    failures = 0
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-"))
        name = f"bench{os.getpid()}"
        lab = ends.enter_context(Lab.up(len(MACHINES), name=name, rate=rate, share=[folder]))
        keys = Keys(lab, Path(folder))
        for cell in cells:
            try:
                results.add({**cell.key, **_train(cell, lab, keys, chosen)})
            except Failed as failure:
                failures += 1
                print(f"{cell.spec} at {rate}: {failure}", file=sys.stderr, flush=True)
    return failures


def _train(cell: Cell, lab: Lab, keys: Keys, chosen: argparse.Namespace) -> dict[str, Any]:
    # The home of a lab machine is its own, so the place of the data has to be said.
    data = os.environ.get("PHALANX_DATA") or str(Path.home() / ".cache/phalanx/datasets")
    words = [str(cell.target), str(chosen.epochs), str(chosen.limit)]
    places = keys.team(SCRIPT, MACHINES, cell.spec, words=words, variables={"PHALANX_DATA": data})
    before, team = sum(lab.counters("m1")), Team(cell.spec, lab, places)
    try:
        end = time.monotonic() + START_SECONDS + 2.5 * chosen.limit
        parts = list(_parts(team.members[0], end))
    finally:
        team.close()
    seconds, accuracy = parts[-1]
    moved = sum(lab.counters("m1")) - before
    return {
        "seconds": round(seconds, 2) if accuracy >= cell.target else None,
        "accuracy": round(accuracy, 4),
        "trained_seconds": round(seconds, 2),
        "epochs": len(parts) / PARTS,
        "seconds_an_epoch": round(seconds * PARTS / len(parts), 2),
        "mb_both_ways_an_epoch": round(moved * PARTS / len(parts) / 1e6, 1),
        "load": round(os.getloadavg()[0], 2),
    }


def _parts(first: Member, end: float) -> Iterator[tuple[float, float]]:
    while (line := first.next_line(end))[:1] == ["part"]:
        yield float(line[1]), float(line[2])
    if line != ["end"]:
        raise Failed(f"it said {' '.join(line)}")


def table(results: Results, rate: str, target: float) -> list[str]:
    """Seconds to the target, and how often that is as quick as without a codec."""
    lines = [
        f"Seconds to {target:.0%} at {rate} (times as quick as without a codec)",
        "",
        f"| | {' | '.join(CODECS)} |",
        "|---" * (len(CODECS) + 1) + "|",
    ]
    for strategy in STRATEGIES:
        found = [results.find(Cell(rate, strategy, codec, target).key) for codec in CODECS]
        words = [_words(row, found[0]) for row in found]
        lines.append(f"| `{strategy}` | {' | '.join(words)} |")
    return [*lines, ""]


def _words(row: dict[str, Any] | None, plain: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["seconds"] is None:
        return f"not reached ({row['accuracy']:.3f} after {row['trained_seconds']:.0f} s)"
    text = f"{row['seconds']:.1f}"
    if row is plain or plain is None or plain["seconds"] is None:
        return text
    return f"{text} ({plain['seconds'] / row['seconds']:.1f})"
