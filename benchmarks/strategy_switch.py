"""``python -m benchmarks strategy-switch``: the table of the Strategy Switch, in virtual time.

Five equal and five unequal workers; ``allreduce``, ``async``, a switch at every point of a grid,
and the reverse switch, with several seeds. On the CPU a small CNN; the study's ResNet on a GPU:

    python -m benchmarks strategy-switch --model resnet --epochs 30 --grid 4 --device cuda

Runs that are done are kept in the folder, and not run again; ``--table`` only prints them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness import NOTHING, ROOT, report
from benchmarks.whole_runs import Results, forget, run_phalanx
from phalanx.core.run_folder.run_paths import slug

SCRIPT = ROOT / "benchmarks" / "scripts" / "strategy_switch.py"
CLUSTERS = {"equal": "1,1,1,1,1", "unequal": "1,1,0.75,0.5,0.25"}
BALANCED = "allreduce, balanced"
"""Shares of the batch follow the speeds; all others have equal shares, as published."""
REVERSE = "async@0.5/allreduce"
MODELS: dict[str, dict[str, Any]] = {
    # Steps and links: asynchronous training of equal workers saves as much time as published.
    "cnn": {"epochs": 10, "samples": 2500, "seeds": 5, "step": "10ms+5ms", "link": "100mbit"},
    "resnet": {"epochs": 30, "samples": 50_000, "seeds": 1, "step": "20ms+12ms", "link": "1gbit"},
}
SETTINGS = ("model", "epochs", "samples", "learning_rate", "batch", "step", "link", "jitter")


def main(words: list[str]) -> None:
    chosen = parse(words)
    results = Results(chosen.folder / "results.jsonl")

    def known(one: tuple[str, str, int]) -> dict[str, Any] | None:
        cluster, strategy, seed = one
        key = {name: getattr(chosen, name) for name in SETTINGS}
        key |= {"cluster": cluster, "strategy": strategy, "seed": seed}
        found = results.find(key)
        if found is None and not chosen.table:
            found = key | _run(chosen, cluster, strategy, seed)
            results.add(found)
        return found

    with ThreadPoolExecutor(chosen.parallel) as pool:
        rows = [row for row in pool.map(known, list(wanted(chosen))) if row]
    for cluster in chosen.clusters.split(","):
        table: dict[str, list[dict[str, Any]]] = {}
        for strategy in _strategies(chosen, cluster):
            mine = [r for r in rows if (r["cluster"], r["strategy"]) == (cluster, strategy)]
            table |= {strategy: mine} if mine else {}
        _tell(cluster, table)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks strategy-switch")
    parser.add_argument("--model", choices=list(MODELS), default="cnn")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for name in ("epochs", "samples", "seeds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--step", help="as --step-seconds of phalanx simulate")
    parser.add_argument("--link", help="as --rate of phalanx simulate")
    parser.add_argument("--jitter", type=float, default=0.1)
    parser.add_argument("--grid", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "strategy-switch")
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds for a run")
    parser.add_argument("--table", action="store_true", help="only what is there")
    chosen = parser.parse_args(words)
    for name, value in MODELS[chosen.model].items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    return chosen


def _points(grid: int) -> list[str]:
    """From never synchronous to always."""
    switches = [f"switch:at={part / grid:g}" for part in range(1, grid)]
    return ["async", *switches, "allreduce"]


def _strategies(chosen: argparse.Namespace, cluster: str) -> list[str]:
    more = [BALANCED] if cluster == "unequal" else []
    return [*reversed(_points(chosen.grid)), REVERSE, *more]


def wanted(chosen: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for seed in range(chosen.seeds):
        for cluster in chosen.clusters.split(","):
            for strategy in _strategies(chosen, cluster):
                yield cluster, strategy, seed


def _run(chosen: argparse.Namespace, cluster: str, strategy: str, seed: int) -> dict[str, Any]:
    runs = chosen.folder / "runs" / f"{cluster}-{slug(strategy)}-{seed}"
    name, _, balanced = strategy.partition(", ")
    name += "" if balanced else ":shares=equal"
    words = ["simulate", str(SCRIPT), "--workers", "5", "--strategy", name, "--seed", str(seed)]
    words += ["--speeds", CLUSTERS[cluster]]
    words += [
        "--step-seconds",
        f"{chosen.step}~{chosen.jitter}",
        "--rate",
        chosen.link,
        "--latency",
        "0.1ms",
    ]
    words += ["--batch", str(chosen.batch), "--", chosen.model]
    for option in ("samples", "epochs"):
        words += [f"--{option}", str(getattr(chosen, option))]
    gpus = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    variables = gpus if chosen.device == "cuda" else NOTHING
    words += ["--rate", str(chosen.learning_rate)]
    summary = run_phalanx(words, runs, chosen.limit, variables)
    forget(runs)
    ages = [worker["mean_staleness"] or 0.0 for worker in summary["per_worker"]]
    return {
        "accuracy": summary["test_accuracy"],
        "virtual_seconds": summary["seconds"],
        "staleness": fmean(ages),
    }


def _tell(cluster: str, table: dict[str, list[dict[str, Any]]]) -> None:
    if "allreduce" not in table:
        return
    base = table["allreduce"]
    for strategy, rows in table.items():
        values = [100 * row["accuracy"] for row in rows]
        behind = [
            100 * (one["accuracy"] - own["accuracy"])
            for own in rows
            for one in base
            if one["seed"] == own["seed"]
        ]
        seconds = fmean(row["virtual_seconds"] for row in rows)
        times = fmean(row["virtual_seconds"] for row in base)
        report(
            f"strategy switch, {cluster} workers, simulated, {strategy}: test accuracy, %",
            mean=round(fmean(values), 2),
            least=round(min(values), 2),
            most=round(max(values), 2),
            behind_allreduce=round(fmean(behind), 2),
            virtual_seconds=round(seconds, 2),
            time_against_allreduce=f"{100 * (seconds / times - 1):+.1f} %",
            staleness=round(fmean(row["staleness"] for row in rows), 2),
            seeds=len(rows),
        )
