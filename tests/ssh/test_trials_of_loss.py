"""Seeded trials on machines of a lab: something is lost in mid-training, and no sample with it.

The parameters are counters: each update adds one to the counter of each of its samples, so that
the final weights say how often each sample was trained, whatever was lost, resumed or repeated.
``PHALANX_TRIALS=100`` runs so many of them; ``PHALANX_FIRST_TRIAL`` is the first seed. Each trial
appends a line of JSON to the file that ``PHALANX_TRIALS_LOG`` names. Machines that lost the others
wait for them for ``RECONNECT`` seconds instead of two minutes, so that they have ended by the time
that is allowed for it.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lab_machines import MakeLab, lab, run_in
from safetensors.torch import load_file
from ssh_runs import Bench, Ended, Running, agents, kill_in, processes

from phalanx.lab.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
__all__ = ["lab"]

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
class Outcome:
    """What came of a trial."""

    ended: str = ""
    """How the run ended that the fault happened to; what it said last."""
    went_on: bool = False
    silence: float = 0.0
    """Seconds from the fault to the first line about it, or to the run's end. Where the controller
    was killed: from the start of the resume to the first line that it says."""
    said: str = ""
    """That line."""
    wrong: dict[str, int] | None = None
    """How often samples were trained that were not trained once per epoch, and how many; ``None``
    until they were counted."""
    remains: dict[str, list[str]] = field(default_factory=dict)
    """By machine: processes and folders that are there after LONGEST_REMAINS."""
    emptied: float = 0.0
    started: float = 0.0
    """Seconds to the end of the epoch that was waited for."""
    resumed: float = 0.0
    seconds: float = 0.0
    failed: str = "interrupted"
    """Empty for a trial that came to its end."""


FIRST = int(os.environ.get("PHALANX_FIRST_TRIAL", "0"))
TRIALS = [Trial.of(FIRST + n) for n in range(int(os.environ.get("PHALANX_TRIALS", "6")))]


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(len(MACHINES))


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


def _watch(running: Running, lab: Lab, trial: Trial, outcome: Outcome, limit: float) -> Ended:
    """Until it ends; how long it said nothing of the fault. A stopped machine may go on again."""
    began = time.monotonic()
    length = len(running.text)
    goes_on = began + STOPPED if trial.way == "stopped" and trial.healed else math.inf
    while running.process.poll() is None and time.monotonic() < began + limit:
        time.sleep(0.1)
        if not outcome.said:
            outcome.silence = round(time.monotonic() - began, 1)
            outcome.said = _about(trial, running.text[length:])
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


def _look_after(
    lab: Lab, before: dict[str, set[str]], temporary: Path, outcome: Outcome, *, own: bool
) -> None:
    """Whether nothing is left on any machine, nor here, within the time that it may take."""
    began = time.monotonic()
    while True:
        outcome.remains = {}
        for name in MACHINES:
            running = [args[:100] for args in processes(lab, name).values()]
            if left := [*running, *sorted(_folders(lab, name, own=own) - before[name])]:
                outcome.remains[name] = left
        if left := sorted(map(str, temporary.iterdir())):
            outcome.remains["here"] = left
        outcome.emptied = round(time.monotonic() - began, 1)
        if not outcome.remains or outcome.emptied > LONGEST_REMAINS:
            return
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


def _resume(bench: Bench, trial: Trial, run: Path, outcome: Outcome, **variables: str) -> Ended:
    """On all machines, or on those that are left."""
    gone = trial.way in ("cut", "stopped") and not trial.healed
    chosen = ",".join(name for name in MACHINES if not gone or name != trial.victim)
    began = time.monotonic()
    words = ["resume", run.name, *(["--machines", chosen] if gone else [])]
    again = bench.start(*words, **variables)
    if trial.way == "controller":
        again.until(r"\w", limit=LIMIT)
        outcome.silence = round(time.monotonic() - began, 1)
        outcome.said = again.text.splitlines()[0]
    ended = again.end(LIMIT)
    outcome.resumed = round(time.monotonic() - began, 1)
    return ended


def _carry_out(bench: Bench, trial: Trial, outcome: Outcome) -> None:
    variables = {"PHALANX_RECONNECT": f"{RECONNECT:g}", "TMPDIR": str(bench.folder / "tmp")}
    words = ["--pool", str(bench.pool), "--machines", ",".join(MACHINES), "--epochs", str(EPOCHS)]
    words += ["--strategy", trial.strategy + ":shares=equal" * (trial.balance == "off")]
    began = time.monotonic()
    running = bench.start("run", "train.py", *words, **variables)
    running.until(rf"epoch\s+{trial.after}/", limit=LIMIT)
    outcome.started = round(time.monotonic() - began, 1)
    time.sleep(trial.delay)
    _lose(bench.lab, trial, running)
    ended = _watch(running, bench.lab, trial, outcome, LIMIT)
    run = bench.latest()
    outcome.went_on = ended.code == 0
    outcome.ended = " ".join(ended.text.splitlines()[-6:])[-500:]
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
        again = _resume(bench, trial, run, outcome, **variables)
        assert again.code == 0, f"{ended.text}\n{again.text}"
        run = bench.latest()
    outcome.wrong = _wrong_counts(run)
    outcome.failed = ""


def _record(trial: Trial, outcome: Outcome) -> None:
    line = json.dumps({**asdict(trial), **asdict(outcome)})
    print(f"\n{line}")
    if path := os.environ.get("PHALANX_TRIALS_LOG"):
        with Path(path).open("a") as log:
            log.write(line + "\n")


@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: f"{t.seed}-{t.strategy}-{t.way}-{t.victim}")
def test_no_sample_is_lost_with_a_machine(machines: Lab, tmp_path: Path, trial: Trial) -> None:
    bench, outcome, began = Bench(machines, tmp_path), Outcome(), time.monotonic()
    (bench.project / "train.py").write_text(SCRIPT)
    (temporary := tmp_path / "tmp").mkdir()
    before = {name: _folders(machines, name, own=False) for name in MACHINES}
    try:
        _carry_out(bench, trial, outcome)
    except AssertionError as error:
        outcome.failed = str(error)[-3000:]
    finally:
        _bring_back(machines, trial)
        bench.close()
        _look_after(machines, before, temporary, outcome, own="every=" in trial.strategy)
        outcome.seconds = round(time.monotonic() - began, 1)
        _record(trial, outcome)
        for name, left in ((n, processes(machines, n)) for n in MACHINES):
            for pid in left:  # the next trial begins on empty machines
                subprocess.run(machines.command(name, ["kill", "-KILL", str(pid)]), timeout=20)
    assert not outcome.failed, outcome.failed
    assert outcome.wrong == {}, f"{trial}: samples by how often they were trained: {outcome.wrong}"
    assert outcome.silence <= LONGEST_SILENCE, f"{trial}: nothing said for {outcome.silence} s"
    assert not outcome.remains, f"{trial}: left behind: {outcome.remains}"
