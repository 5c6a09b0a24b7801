"""``make bench``: every figure of one machine, one JSON line each.

``python -m benchmarks [steps] [collective] [fit] [precision] [help]`` (all when none is named)
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import report, spread, start_workers


def steps() -> None:
    found = start_workers("step_worker", 2, "10", "sgd", "--ddp")
    _report_steps(found, "2 workers, SGD")
    ddp = [a / b for a, b in zip(found["allreduce"], found["ddp"], strict=True)]
    report("allreduce step / DDP step", bar="<= 0.55", **spread(ddp))
    free = [a / b for a, b in zip(found["allreduce"], found["async"], strict=True)]
    report("async / allreduce, samples/s, SGD", bar=">= 1", **spread(free))
    adam = start_workers("step_worker", 2, "6", "adam")
    _report_steps(adam, "2 workers, Adam")
    free = [a / b for a, b in zip(adam["allreduce"], adam["async"], strict=True)]
    report("async / allreduce, samples/s, Adam", **spread(free))
    three = start_workers("step_worker", 3, "6", "sgd", pin=False)
    _report_steps(three, "3 workers on 2 cores, SGD")
    for name, bar in (("async", 0.8), ("allreduce", 0.6)):
        middle = spread(found[name])["median"]
        report(
            f"{name}: 3 workers / 2 workers, samples/s",
            bar=f">= {bar}",
            **spread([middle / seconds for seconds in three[name]]),
        )


def _report_steps(found: dict[str, list[float]], what: str) -> None:
    for name, seconds in found.items():
        report(f"{name}, {what}, ms a step", **spread([s * 1e3 for s in seconds]))


def collective() -> None:
    found = start_workers("collective_worker", 2)
    for size, bar in (("64 KB", 15), ("1 MB", 5), ("32 MB", 2)):
        ours, gloo = found[f"shared {size}"], found[f"gloo {size}"]
        report(f"all-reduce {size}, shared memory, µs", **spread([s * 1e6 for s in ours]))
        report(f"all-reduce {size}, Gloo, µs", **spread([s * 1e6 for s in gloo]))
        ratios = [b / a for a, b in zip(ours, gloo, strict=True)]
        report(f"all-reduce {size}: times as fast as Gloo", bar=f">= {bar}", **spread(ratios))


def fit() -> None:
    _alone("fit_overhead")


def precision() -> None:
    _alone("precision")


def _alone(module: str) -> None:
    subprocess.run(["taskset", "-c", "0", sys.executable, "-m", f"benchmarks.{module}"], check=True)


def help() -> None:
    command = [str(Path(sys.executable).with_name("phalanx")), "--help"]
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    report("phalanx --help, s", bar="< 0.4", **spread(seconds))


FIGURES = {
    "help": help,
    "fit": fit,
    "collective": collective,
    "steps": steps,
    "precision": precision,
}


def main() -> None:
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main()
