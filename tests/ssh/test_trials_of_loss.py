"""Seeded trials on machines of a lab: something is lost in mid-training, and no sample with it.

The parameters are counters: each update adds one to the counter of each of its samples, so that
the final weights say how often each sample was trained, whatever was lost, resumed or repeated.
``PHALANX_TRIALS=50`` runs so many of them; ``PHALANX_FIRST_TRIAL`` is the first seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab_machines import MakeLab, lab
from safetensors.torch import load_file
from ssh_runs import Bench, Ended, Running, agents, kill_in, processes

from phalanx.lab.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
__all__ = ["lab"]

SAMPLES, BATCH, EPOCHS = 960, 48, 6
MACHINES = ["m1", "m2", "m3"]
SCRIPT = f"""
import time
import torch
from torch import nn
import phalanx

model = nn.Embedding({SAMPLES}, 1)
nn.init.zeros_(model.weight)
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1.0))
data = torch.arange({SAMPLES}), torch.arange({SAMPLES})
for epoch in run.epochs({EPOCHS}):
    for numbers, _ in run.batches(data, batch={BATCH}):
        time.sleep(0.03)
        run.backward(-{BATCH} * model(numbers).mean())
        run.step()
"""


@dataclass(frozen=True)
class Trial:
    seed: int
    strategy: str
    way: str
    victim: str
    after: int
    """The epoch whose end is waited for."""
    delay: float
    healed: bool
    """Whether a machine that was cut off is back when the run is resumed."""

    @staticmethod
    def of(seed: int) -> Trial:
        draw = random.Random(seed)
        return Trial(
            seed,
            draw.choice(["allreduce", "async", "ssp:bound=3"]),
            draw.choice(["agent", "cut", "worker"]),
            draw.choice(MACHINES),
            draw.randint(1, 3),
            draw.uniform(0.0, 1.5),
            draw.random() < 0.5,
        )


FIRST = int(os.environ.get("PHALANX_FIRST_TRIAL", "0"))
TRIALS = [Trial.of(FIRST + n) for n in range(int(os.environ.get("PHALANX_TRIALS", "6")))]


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(len(MACHINES))


def _lose(lab: Lab, trial: Trial) -> None:
    if trial.way == "cut":
        lab.cut(trial.victim)
    elif trial.way == "agent":
        kill_in(lab, trial.victim, agents(lab, trial.victim)[-1])
    else:
        running = processes(lab, trial.victim)
        kill_in(lab, trial.victim, next(p for p, args in running.items() if "bootstrap" in args))


def _counts(run: Path) -> list[float]:
    """How often each sample was trained, as the final weights say."""
    weights = load_file(run / "model.safetensors")
    found: list[float] = next(iter(weights.values())).flatten().round(decimals=2).unique().tolist()
    return found


def _resumed(bench: Bench, trial: Trial, run: Path) -> Ended:
    gone = trial.way == "cut" and not trial.healed
    if trial.way == "cut" and trial.healed:
        bench.lab.heal(trial.victim)
    chosen = ",".join(name for name in MACHINES if not gone or name != trial.victim)
    words = ["--machines", chosen] if gone else []
    return bench.do("resume", run.name, *words, limit=400.0)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: f"{t.seed}-{t.strategy}-{t.way}-{t.victim}")
def test_no_sample_is_lost_with_a_machine(machines: Lab, tmp_path: Path, trial: Trial) -> None:
    bench = Bench(machines, tmp_path)
    (bench.project / "train.py").write_text(SCRIPT)
    words = ["--strategy", trial.strategy, "--balance", "off"]
    running: Running = bench.train(*words, machines=",".join(MACHINES), epochs=EPOCHS)
    try:
        running.until(rf"epoch\s+{trial.after}/", limit=300.0)
        time.sleep(trial.delay)
        _lose(machines, trial)
        ended = running.end(300.0)
        run = bench.latest()
        if ended.code == 0:
            if bench.summary()["unreported"]:  # the weights below count what no event did
                assert "did not arrive" in ended.text
            else:
                assert bench.summary()["samples"] == EPOCHS * SAMPLES, ended.text
            assert bench.summary()["samples_lost"] == 0, ended.text
        else:
            again = _resumed(bench, trial, run)
            print(f"\n{trial}\n{ended.text}\n{again.text}")
            assert again.code == 0, f"{trial}\n{ended.text}\n{again.text}"
            run = bench.latest()
        assert _counts(run) == [EPOCHS], f"{trial}\n{ended.text}"
        print(
            f"\n{trial}: {'went on' if ended.code == 0 else 'resumed'}, each sample {EPOCHS} times"
        )
    finally:
        machines.heal(trial.victim)
        bench.close()
