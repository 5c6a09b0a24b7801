"""What crosses the link in a step, by the kernel's counters, is what the formulas say.

The phases of a training are one strategy each, for an epoch: so one start measures many.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from counting_script import BATCH, WIDTH
from wire_bytes import gradient_bytes
from worker_runs import start_workers

from phalanx.lab.lab import Lab
from phalanx.sync.collective.algorithms import butterfly, direct, ring, tree
from phalanx.sync.state.layout import make_layout

SCRIPT = Path(__file__).with_name("counting_script.py")
STEPS, FIRST, LAST = 44, 4, 32  # whole rounds of strategies that meet every 4 steps
TOLERANCE = 0.05
WHOLE = 4 * WIDTH * WIDTH
CODECS = ["fp16", "bf16", "int8", "int4", "topk", "threshold:value=0", "powersgd"]
SumBytes = Callable[[int, int, int], int]


@cache
def coded(codec: str, servers: int = 1) -> int:
    layout = make_layout([(0, torch.empty(WIDTH, WIDTH))], servers)
    return gradient_bytes([layout], codec)


@dataclass(frozen=True)
class Case:
    """``sent`` and ``received`` in a step, by rank; ``None`` where nothing determines it."""

    spec: str
    sent: tuple[float, ...]
    received: tuple[float | None, ...]


def summed(spec: str, algorithm: SumBytes, hosts: int, every: int = 1) -> Case:
    """All that is sent is received; in these algorithms on three hosts not by equal parts."""
    sent = tuple(algorithm(WHOLE, hosts, rank) / every for rank in range(hosts))
    return Case(spec, sent, sent if hosts == 2 else (None,) * hosts)


def alike(spec: str, sent: float, received: float | None) -> Case:
    return Case(spec, (sent, sent), (received, received))


TWO = [
    summed("allreduce", direct.bytes_sent, 2),
    summed("allreduce:topology=ring", ring.bytes_sent, 2),
    summed("allreduce:topology=tree", tree.bytes_sent, 2),
    summed("allreduce:topology=butterfly", butterfly.bytes_sent, 2),
    summed("localsgd:every=4", direct.bytes_sent, 2, every=4),
    summed("diloco:every=4", direct.bytes_sent, 2, every=4),
    alike("localsgd:every=2+int8", coded("int8") / 2, coded("int8") / 2),
    *(alike(f"allreduce+{codec}", coded(codec), coded(codec)) for codec in CODECS),
]
THREE = [
    summed("allreduce", direct.bytes_sent, 3),
    summed("allreduce:topology=ring", ring.bytes_sent, 3),
    summed("allreduce:topology=tree", tree.bytes_sent, 3),
    summed("allreduce:topology=butterfly", butterfly.bytes_sent, 3),
    Case("allreduce+int8", (2 * coded("int8"),) * 3, (2 * coded("int8"),) * 3),
]
STORE = [
    alike("async:servers=1", WHOLE, WHOLE),
    alike("async", WHOLE, WHOLE),
    alike("async:overlap=yes", WHOLE, WHOLE),
    alike("bsp", WHOLE, WHOLE),
    alike("bsp+int4", coded("int4", 2), WHOLE),
    alike("ssp:bound=3", WHOLE, WHOLE),
    alike("ssp:bound=0", WHOLE, WHOLE),
    alike("dssp", WHOLE, WHOLE),
    # One group: its hosts exchange, the first pushes and is answered, the other one pulls.
    Case("groups:size=2", (2 * WHOLE, WHOLE), (2 * WHOLE, 2 * WHOLE)),
    alike("groups:size=1", WHOLE, WHOLE),
    *(alike(f"async+{codec}", coded(codec, 2), WHOLE) for codec in CODECS),
]
SHARED = [
    summed("allreduce", direct.bytes_sent, 2),
    alike("allreduce+int8", coded("int8"), coded("int8")),
    alike("bsp", WHOLE, WHOLE),
    summed("localsgd:every=4", direct.bytes_sent, 2, every=4),
]
RUNS: dict[str, tuple[list[Case], list[str], list[str]]] = {
    "two": (TWO, ["m1", "m2"], []),
    "three": (THREE, ["m1", "m2", "m3"], []),
    "store": (STORE, ["m1", "m2"], ["m3", "m3"]),
    "shared": (SHARED, ["m1", "m1", "m2", "m2"], ["m3"]),
}
"""Cases, the machines of the workers, and those of the servers."""
Measured = list[dict[str, tuple[float, float]]]


@pytest.fixture(scope="module")
def measure(
    machines: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Measured]]:
    """Bytes that a machine received and sent in a step: by machine, by the number of the case."""

    @cache
    def measured(name: str) -> Measured:
        return _measure(machines, name, tmp_path_factory.mktemp(name))

    yield measured


def _measure(lab: Lab, name: str, folder: Path) -> Measured:
    cases, on, serving = RUNS[name]
    phases = [f"{case.spec}@{n}e" for n, case in enumerate(cases, 1)]
    spec = "/".join([*phases[:-1], cases[-1].spec])
    words = [str(folder), str(STEPS * BATCH), str(len(cases))]
    command = [str(SCRIPT), "--strategy", spec, "--", *words]
    given = {"PHALANX_RUN": str(folder / "run")}  # the name of such a spec would be too long
    with start_workers(lab, folder, command, on=on, serving=serving, **given) as workers:
        workers.finish(limit=280.0)
    found: Measured = [{} for _ in cases]
    for rank, machine in enumerate(on):
        rows = json.loads((folder / f"{rank}.json").read_text())
        for epoch, per_machine in enumerate(found):
            mine = [row[1:] for row in rows if row[0] == epoch]
            if machine not in per_machine:  # of workers that share one, the first
                per_machine[machine] = _per_step(mine)
    return found


def _per_step(rows: list[list[int]]) -> tuple[float, float]:
    assert len(rows) > LAST, "the worker took too few steps to tell"
    first, last = rows[FIRST], rows[LAST]
    received, sent = ((last[i] - first[i]) / (LAST - FIRST) for i in range(2))
    return received, sent


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, id=f"{name}-{case.spec}")
        for name, (cases, _, _) in RUNS.items()
        for number, case in enumerate(cases)
    ],
)
def test_bytes_of_a_step(measure: Callable[[str], Measured], name: str, number: int) -> None:
    case = RUNS[name][0][number]
    found = measure(name)[number]
    for machine, sent, received in zip(found, case.sent, case.received, strict=True):
        got, gave = found[machine]
        words = f"sent {_ratio(gave, sent)}  got {_ratio(got, received)}"
        print(f"{name:7} {case.spec:30} {machine} {words}")
        assert gave == pytest.approx(sent, rel=TOLERANCE)
        assert received is None or got == pytest.approx(received, rel=TOLERANCE)


def _ratio(measured: float, formula: float | None) -> str:
    against = f"/ {formula:11.0f} = {measured / formula:.4f}" if formula else "(no formula)"
    return f"{measured:11.0f} {against}"
