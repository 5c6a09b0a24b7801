"""Steps of the MLP: strategies against each other, against DDP and against the compute floor."""

from __future__ import annotations

from benchmarks.harness import report, spread, start_workers

Blocks = dict[str, list[float]]


def steps(rounds: int = 10) -> None:
    two = _sgd(rounds)
    _adam(rounds)
    _crowded(two, rounds)


def _sgd(rounds: int) -> Blocks:
    names = "allreduce,async,bsp,ssp:bound=3"
    found = start_workers("step_worker", 2, str(rounds), "sgd", names, "--ddp", "--floor")
    _report_steps(found, "2 workers, SGD")
    _ratio(found, "allreduce", "ddp", "allreduce step / DDP step", "<= 0.5")
    _ratio(found, "allreduce", "async", "async / allreduce, samples/s, SGD", ">= 1.1")
    _ratio(found, "bsp", "ssp:bound=3", "ssp:bound=3 / bsp, samples/s, SGD", ">= 1")
    for name in ("allreduce", "async"):
        _ratio(found, "floor", name, f"{name}, SGD, share of the compute floor's speed")
    return found


def _adam(rounds: int) -> None:
    found = start_workers("step_worker", 2, str(min(rounds, 6)), "adam", "allreduce,async")
    _report_steps(found, "2 workers, Adam")
    _ratio(found, "allreduce", "async", "async / allreduce, samples/s, Adam")


def _crowded(two: Blocks, rounds: int) -> None:
    words = (str(min(rounds, 6)), "sgd", "allreduce,async")
    three = start_workers("step_worker", 3, *words, pin=False)
    _report_steps(three, "3 workers on 2 cores, SGD")
    for name, bar in (("async", 0.8), ("allreduce", 0.6)):
        middle = spread(two[name])["median"]
        report(
            f"{name}: 3 workers / 2 workers, samples/s",
            bar=f">= {bar}",
            **spread([middle / seconds for seconds in three[name]]),
        )


def _ratio(found: Blocks, over: str, under: str, what: str, bar: str | None = None) -> None:
    """Block by block, so that what slows all of a round slows neither side of it."""
    ratios = [a / b for a, b in zip(found[over], found[under], strict=True)]
    report(what, **({"bar": bar} if bar else {}), **spread(ratios))


def _report_steps(found: Blocks, what: str) -> None:
    for name, seconds in found.items():
        report(f"{name}, {what}, ms a step", **spread([s * 1e3 for s in seconds]))
