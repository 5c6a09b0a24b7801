"""``python -m benchmarks accuracy``: test accuracy of every strategy, by whole runs.

Resumable: a finished run is a line of ``results.jsonl`` in the folder and is not run again.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.accuracy_plan import Trial, Wanted
from benchmarks.accuracy_table import print_tables, report_bars
from benchmarks.harness import ROOT
from benchmarks.whole_runs import Failed, Results, forget, run_phalanx

KEPT = ("test_accuracy", "test_loss", "train_loss", "samples_per_second", "bytes_sent", "seconds")


def main(words: list[str]) -> None:
    chosen = _parse(words)
    wanted = Wanted(chosen.workers, chosen.only, chosen.epochs, chosen.seeds)
    if not wanted.tables():
        raise SystemExit(f"no table has '{chosen.only}' in its name")
    results = Results(chosen.folder / "results.jsonl")
    failures = 0
    if not chosen.table:
        missing = [trial for trial in wanted.all() if results.find(trial.key) is None]
        print(f"{len(missing)} runs to do", file=sys.stderr, flush=True)
        failures = _Crew(missing, results, chosen).work()
        report_bars(wanted, results)
    print_tables(wanted, results)
    if failures:
        raise SystemExit(f"{failures} runs failed; the others are noted and will not be repeated")


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks accuracy")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--only", metavar="NAME", help="tables with this in their name")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "accuracy")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once, on their own cores")
    parser.add_argument("--epochs", type=int, help="instead of the tables' (for a trial)")
    parser.add_argument("--seeds", type=int, help="instead of the tables' (for a trial)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a run may take")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    return parser.parse_args(words)


class _Crew:
    """``parallel`` threads, each with its own cores, that take one run after the other."""

    def __init__(self, trials: list[Trial], results: Results, chosen: argparse.Namespace) -> None:
        self._waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
        for trial in trials:
            self._waiting.put(trial)
        self._results, self._chosen = results, chosen
        self._failures: list[str] = []

    def work(self) -> int:
        """How many runs failed."""
        threads = [
            threading.Thread(target=self._work_on, args=(cpus,), daemon=True)
            for cpus in parts(sorted(os.sched_getaffinity(0)), self._chosen.parallel)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(self._failures)

    def _work_on(self, cpus: list[int]) -> None:
        os.sched_setaffinity(0, cpus)  # of this thread, and so of all that it starts
        while True:
            try:
                trial = self._waiting.get_nowait()
            except queue.Empty:
                return
            self._try(trial)

    def _try(self, trial: Trial) -> None:
        name = "-".join(str(value) for value in trial.key.values())
        runs = self._chosen.folder / name.replace(":", "-").replace("/", "-")
        try:
            found = run_phalanx(trial.words, runs, self._chosen.limit)
        except Failed as failure:
            self._failures.append(name)
            print(f"{name}: {failure}", file=sys.stderr, flush=True)
            return
        self._results.add({**trial.key, **_kept(found)})
        forget(runs)


def _kept(found: dict[str, Any]) -> dict[str, Any]:
    train = found["phases"]["train"]
    return {**{name: found[name] for name in KEPT}, "train_seconds": train}


def parts(cpus: list[int], count: int) -> list[list[int]]:
    """Equal parts of the cores, neighbours together; with fewer cores than parts, all share."""
    size = len(cpus) // count
    if size == 0:
        return [cpus] * count
    return [cpus[i * size : (i + 1) * size] for i in range(count)]
