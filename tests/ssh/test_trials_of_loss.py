"""Seeded trials on machines of a lab: something is lost in mid-training, and no sample with it.

The parameters are counters: each update adds one to the counter of each of its samples, so that
the final weights say how often each sample was trained, whatever was lost, resumed or repeated.
``PHALANX_TRIALS=100`` runs so many of them; ``PHALANX_FIRST_TRIAL`` is the first seed. Machines
that lost the others wait for them for ``RECONNECT`` seconds instead of two minutes, so that they
have ended by the time that is allowed for it.
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab_machines import run_in
from safetensors.torch import load_file
from ssh_runs import Bench, Ended, Running, agents, kill_in, processes

from phalanx.lab.lab import Lab

pytestmark = pytest.mark.timeout(1200)
LAB = {"count": 3}

SAMPLES, BATCH, EPOCHS = 480, 48, 5
MACHINES = ["m1", "m2", "m3"]
# An outer step with rate 1 and no momentum takes the mean itself, which counts.
STRATEGIES = [
    "allreduce",
    "bsp",
    "async",
    "ssp:bound=3",
    "dssp",
    "groups:size=2",
    "localsgd:every=3",
    "diloco:every=3:rate=1:momentum=0",
    "allreduce@0.5/async",
    "async@0.5/allreduce",
]
WAYS = ["worker", "agent", "controller", "cut", "stopped"]
LONGEST_SILENCE, LONGEST_REMAINS, RECONNECT = 15.0, 60.0, 20.0
LIMIT = 300.0
STOPPED = 20.0
"""Seconds for which a machine stands still that goes on in mid-run; the others stay stopped."""
LOSS = r"lost|killed|ended|answered|sent nothing|reached|failed|stopped|stop responding|gone"
"""What a line says of a machine or worker that something happened to."""
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
        time.sleep(0.03 + 0.001 * (1 + run.rank) * len(numbers))
        run.backward(-{BATCH} * model(numbers).mean())
        run.step()
"""


@dataclass(frozen=True)
class Trial:
    seed: int
    strategy: str
    way: str
    victim: str
    balance: str
    after: int
    """The epoch whose end is waited for."""
    delay: float
    healed: bool
    """Whether a machine that was cut off or stopped is back when the run is resumed."""

    @staticmethod
    def of(seed: int) -> Trial:
        """Ten trials in a row have all strategies, fifty have each of them in each way."""
        draw = random.Random(seed)
        return Trial(
            seed,
            STRATEGIES[seed % len(STRATEGIES)],
            WAYS[(seed + seed // len(STRATEGIES)) % len(WAYS)],
            draw.choice(MACHINES),
            draw.choice(["auto", "off"]),
            draw.randint(1, EPOCHS - 2),
            draw.uniform(0.0, 1.0),
            draw.random() < 0.5,
        )


@dataclass
class Noticed:
    """How soon a fault was said. Where the controller was killed: by the run that resumes it."""

    silence: float = 0.0
    """Seconds from the fault, or from the start of the resume, to the first line about it."""
    said: str = ""
    """That line."""


FIRST = int(os.environ.get("PHALANX_FIRST_TRIAL", "0"))
TRIALS = [Trial.of(FIRST + n) for n in range(int(os.environ.get("PHALANX_TRIALS", "6")))]


# -- the fault -------------------------------------------------------------------------------


def _lose(lab: Lab, trial: Trial, running: Running) -> None:
    if trial.way == "cut":
        lab.cut(trial.victim)
    elif trial.way == "stopped":
        _signal_all(lab, trial.victim, "STOP")
    elif trial.way == "controller":
        running.signal(signal.SIGKILL)
    elif trial.way == "agent":
        kill_in(lab, trial.victim, agents(lab, trial.victim)[-1])
    else:
        found = processes(lab, trial.victim)
        kill_in(lab, trial.victim, next(p for p, args in found.items() if "bootstrap" in args))


def _signal_all(lab: Lab, machine: str, name: str) -> None:
    found = [str(pid) for pid in processes(lab, machine)]
    if found:  # one of them may have ended meanwhile
        words = lab.command(machine, ["kill", f"-{name}", *found])
        subprocess.run(words, check=False, timeout=20, capture_output=True)


def _bring_back(lab: Lab, trial: Trial) -> None:
    if trial.way == "cut":
        lab.heal(trial.victim)
    elif trial.way == "stopped":
        _signal_all(lab, trial.victim, "CONT")


def _about(trial: Trial, text: str) -> str:
    """The first line that says that something happened to the victim."""
    who = rf"\b{trial.victim}\b|\bworker {MACHINES.index(trial.victim)}\b"
    lines = (line for line in text.splitlines() if re.search(LOSS, line) and re.search(who, line))
    return next(lines, "")


def _watch(running: Running, lab: Lab, trial: Trial, noticed: Noticed) -> Ended:
    """Until it ends; how long it said nothing of the fault. A stopped machine may go on again."""
    began = time.monotonic()
    length = len(running.text)
    goes_on = began + STOPPED if trial.way == "stopped" and trial.healed else math.inf
    while running.process.poll() is None and time.monotonic() < began + LIMIT:
        time.sleep(0.1)
        if not noticed.said:
            noticed.silence = time.monotonic() - began
            noticed.said = _about(trial, running.text[length:])
        if time.monotonic() > goes_on:
            _bring_back(lab, trial)
            goes_on = math.inf
    return running.end(1.0)


# -- what is left of it ----------------------------------------------------------------------


def _folders(lab: Lab, machine: str, *, own: bool) -> set[str]:
    """``own``: without what torch makes by itself."""
    places = ["/tmp", "/dev/shm"]
    found = run_in(lab, machine, ["find", *places, "-mindepth", "1", "-maxdepth", "1"])
    # Where torch's own optimizer makes the steps (localsgd, diloco), torch itself makes an empty
    # folder for each user, as it does in every program that trains without Phalanx.
    return {path for path in found.split() if not own or "/torchinductor_" not in path}


def _remains(
    lab: Lab, before: dict[str, set[str]], temporary: Path, *, own: bool
) -> dict[str, list[str]]:
    """By machine, processes and folders that are there after LONGEST_REMAINS."""
    end = time.monotonic() + LONGEST_REMAINS
    while True:
        found = {"here": sorted(map(str, temporary.iterdir()))}
        for name in MACHINES:
            running = [args[:100] for args in processes(lab, name).values()]
            found[name] = [*running, *sorted(_folders(lab, name, own=own) - before[name])]
        if not any(found.values()) or time.monotonic() > end:
            return {name: left for name, left in found.items() if left}
        time.sleep(0.5)


def _wrong_counts(run: Path) -> dict[str, int]:
    """By how often they were trained, as the final weights say: samples for which it is wrong."""
    assert (run / "model.safetensors").exists(), f"{run} has no model"
    (weights,) = load_file(run / "model.safetensors").values()
    counts = weights.flatten().round(decimals=2)
    values, numbers = counts.unique(return_counts=True)
    pairs = zip(values.tolist(), numbers.tolist(), strict=True)
    return {f"{value:g}": number for value, number in pairs if value != EPOCHS}


# -- a trial ---------------------------------------------------------------------------------


def _resume(bench: Bench, trial: Trial, run: Path, noticed: Noticed, **variables: str) -> Ended:
    """On all machines, or on those that are left."""
    gone = trial.way in ("cut", "stopped") and not trial.healed
    chosen = ",".join(name for name in MACHINES if not gone or name != trial.victim)
    began = time.monotonic()
    words = ["resume", run.name, *(["--machines", chosen] if gone else [])]
    again = bench.start(*words, **variables)
    if trial.way == "controller":
        again.until(r"\w", limit=LIMIT)
        noticed.silence = time.monotonic() - began
    return again.end(LIMIT)


def _carry_out(bench: Bench, trial: Trial) -> Noticed:
    variables = {"PHALANX_RECONNECT": f"{RECONNECT:g}", "TMPDIR": str(bench.folder / "tmp")}
    words = ["--pool", str(bench.pool), "--machines", ",".join(MACHINES), "--epochs", str(EPOCHS)]
    words += ["--strategy", trial.strategy + ":shares=equal" * (trial.balance == "off")]
    running, noticed = bench.start("run", "train.py", *words, **variables), Noticed()
    running.until(rf"epoch\s+{trial.after}/", limit=LIMIT)
    time.sleep(trial.delay)
    _lose(bench.lab, trial, running)
    ended = _watch(running, bench.lab, trial, noticed)
    run = bench.latest()
    if trial.healed:
        _bring_back(bench.lab, trial)
    if ended.code == 0:
        summary: dict[str, Any] = bench.summary()
        if summary["unreported"]:  # the weights below count what no event did
            assert "did not arrive" in ended.text
        else:
            assert summary["samples"] == EPOCHS * SAMPLES, ended.text
        assert summary["samples_lost"] == 0, ended.text
    else:
        again = _resume(bench, trial, run, noticed, **variables)
        assert again.code == 0, f"{ended.text}\n{again.text}"
        run = bench.latest()
    assert _wrong_counts(run) == {}, f"{trial}: samples by how often they were trained"
    return noticed


@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: f"{t.seed}-{t.strategy}-{t.way}-{t.victim}")
def test_no_sample_is_lost_with_a_machine(machines: Lab, tmp_path: Path, trial: Trial) -> None:
    bench = Bench(machines, tmp_path)
    (bench.project / "train.py").write_text(SCRIPT)
    (temporary := tmp_path / "tmp").mkdir()
    before = {name: _folders(machines, name, own=False) for name in MACHINES}
    try:
        noticed = _carry_out(bench, trial)
    finally:
        _bring_back(machines, trial)
        bench.close()
        remains = _remains(machines, before, temporary, own="every=" in trial.strategy)
        for name, left in ((n, processes(machines, n)) for n in MACHINES):
            for pid in left:  # the next trial begins on empty machines
                subprocess.run(machines.command(name, ["kill", "-KILL", str(pid)]), timeout=20)
    assert noticed.silence <= LONGEST_SILENCE, f"{trial}: nothing said for {noticed.silence} s"
    assert not remains, f"{trial}: left behind: {remains}"
