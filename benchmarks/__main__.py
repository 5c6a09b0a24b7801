"""``make bench``: every figure of one machine, one JSON line each.

``python -m benchmarks [steps] [collective] [fit] [fit-host] [precision] [codecs] [switch]
[checkpoint] [help]`` (all when none is named). Others take long, and options, or a lab of
machines, and are only run when named:
``python -m benchmarks {accuracy|straggler|hosts|…} [--help]``
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time

from benchmarks.harness import phalanx_command, report, spread, start_workers
from benchmarks.steps import steps


def collective() -> None:
    found = start_workers("collective_worker", 2)
    for size, bar in (("64 KB", 15), ("1 MB", 5), ("32 MB", 2)):
        ours, gloo = found[f"shared {size}"], found[f"gloo {size}"]
        report(f"all-reduce {size}, shared memory, µs", **spread([s * 1e6 for s in ours]))
        report(f"all-reduce {size}, Gloo, µs", **spread([s * 1e6 for s in gloo]))
        ratios = [b / a for a, b in zip(ours, gloo, strict=True)]
        report(f"all-reduce {size}: times as fast as Gloo", bar=f">= {bar}", **spread(ratios))


def switch(rounds: int = 5, epoch_steps: int = 40) -> None:
    found = start_workers("switch_worker", 2, str(rounds), str(epoch_steps))
    pauses, step = found["pauses"], found["step"]
    medians = {pair: spread(seconds)["median"] / step for pair, seconds in pauses.items()}
    report("allreduce step in the run of the switches, ms", value=step * 1e3)
    for pair in ("allreduce > async", "async > allreduce"):
        report(f"switch {pair}, pause in steps", **spread([s / step for s in pauses[pair]]))
    worst = max(medians, key=lambda pair: medians[pair])
    report(
        "switch, all pairs, pause in steps",
        **spread(list(medians.values())),
        worst=worst,
        worst_median=medians[worst],
        pairs={pair: round(value, 3) for pair, value in sorted(medians.items())},
    )


def checkpoint(rounds: int = 12, epochs: int = 2, samples: int = 54_000) -> None:
    found = start_workers("checkpoint_worker", 2, str(rounds), str(epochs), str(samples))
    for name in ("without", "with"):
        report(f"an epoch {name} a checkpoint, s", **spread(found[name]))
    costs = [a / b - 1 for a, b in zip(found["with"], found["without"], strict=True)]
    report("a checkpoint every epoch, share of training time", bar="<= 0.01", **spread(costs))


def fit() -> None:
    _alone("fit_overhead")


def fit_host() -> None:
    _alone("fit_host")


def precision() -> None:
    _alone("precision")


def codecs() -> None:
    _alone("codecs")


def _alone(module: str) -> None:
    subprocess.run(["taskset", "-c", "0", sys.executable, "-m", f"benchmarks.{module}"], check=True)


def help() -> None:
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        subprocess.run(phalanx_command("--help"), check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    report("phalanx --help, s", bar="< 0.4", **spread(seconds))


FIGURES = {
    "help": help,
    "fit": fit,
    "fit-host": fit_host,
    "collective": collective,
    "steps": steps,
    "precision": precision,
    "codecs": codecs,
    "switch": switch,
    "checkpoint": checkpoint,
}
LONG = {
    "adopted": "benchmarks.adopted",
    "unchanged": "benchmarks.unchanged",
    "views": "benchmarks.views",
    "first-step": "benchmarks.first_step",
    "accuracy": "benchmarks.accuracy",
    "straggler": "benchmarks.straggler",
    "balance": "benchmarks.balance",
    "follow": "benchmarks.follow",
    "gpu": "benchmarks.gpu",
    "keras": "benchmarks.keras_fit",
    "parquet": "benchmarks.parquet_reading",
    "blocks": "benchmarks.block_shuffle",
    "spark-data": "benchmarks.spark_data",
    "tfrecord": "benchmarks.tfrecord_reading",
    "strategy-switch": "benchmarks.strategy_switch",
    "hosts": "benchmarks.hosts",
    "hosts-steps": "benchmarks.hosts_steps",
    "hosts-codecs": "benchmarks.hosts_codecs",
    "hosts-ahead": "benchmarks.hosts_ahead",
    "hosts-straggler": "benchmarks.hosts_straggler",
    "predictions": "benchmarks.predictions",
    "virtual-real": "benchmarks.virtual_real",
    "choices": "benchmarks.choices",
    "scale": "benchmarks.scale",
    "observers": "benchmarks.observers",
    "watching": "benchmarks.watching",
    "store-wire": "benchmarks.store_wire",
    "timing": "benchmarks.timing",
    "virtual": "benchmarks.virtual",
    "watch-history": "benchmarks.watch_history",
}


def main() -> None:
    # Whatever was started or made is ended and removed, also when this is asked to stop.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    words = sys.argv[1:]
    if words and words[0] in LONG:
        importlib.import_module(LONG[words[0]]).main(words[1:])
        return
    if unknown := [word for word in words if word not in FIGURES]:
        raise SystemExit(f"no benchmark '{unknown[0]}': {', '.join([*FIGURES, *LONG])}")
    for name in words or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main()
