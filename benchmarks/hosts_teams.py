"""Processes on lab machines that compute in turns: one team of them for each measured system."""

from __future__ import annotations

import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.harness import NOTHING, ROOT, phalanx_command, report
from benchmarks.peers.turns import MARK
from phalanx.core.run_folder.run_key import RunKey
from phalanx.lab.lab import Lab

READY_LIMIT, BLOCK_LIMIT, END_LIMIT = 120.0, 60.0, 10.0


class Failed(Exception):  # noqa: N818  (what became of a system)
    """A system that could not be measured, and why."""


@dataclass(frozen=True)
class Place:
    """One process: on which machine, what it runs, with which variables, on which core."""

    machine: str
    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    core: int | None = None


class Member:
    """A process on a lab machine. What it prints for the benchmark is read, the rest is kept."""

    def __init__(self, lab: Lab, place: Place, log: Path) -> None:
        self._log = log
        words = lab.command(place.machine, place.words)
        if place.core is not None:
            words = ["taskset", "-c", str(place.core), *words]
        self._process = subprocess.Popen(
            words,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **place.variables},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            start_new_session=True,
            text=True,
        )
        self._lines: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            words = line.split()
            if words[:1] == [MARK]:
                self._lines.put(words[1:])
            else:
                with self._log.open("a") as log:
                    log.write(line)
        self._lines.put(None)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            raise Failed(self._last_words()) from None

    def next_line(self, end: float) -> list[str]:
        """The next line that is for the benchmark."""
        try:
            line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise Failed(f"nothing was heard in time; {self._last_words()}") from None
        if line is None:
            raise Failed(self._last_words())
        return line

    def hear(self, word: str, end: float) -> list[str]:
        """What follows ``word`` in the next line."""
        line = self.next_line(end)
        if line[:1] != [word]:
            raise Failed(f"it said '{' '.join(line)}' and not '{word}'")
        return line[1:]

    def end(self) -> None:
        self._process.kill()
        self._process.wait(END_LIMIT)

    def _last_words(self, most: int = 600) -> str:
        time.sleep(0.2)  # the rest of what it printed is on its way
        text = self._log.read_text(errors="replace").strip()
        return f"it said: {text[-most:]}" if text else "it said nothing"


class Team:
    """The processes of one system."""

    def __init__(
        self, name: str, lab: Lab, places: Sequence[Place], *, leaders: int | None = None
    ) -> None:
        """The first ``leaders`` of the processes (all, when not said) are told to go."""
        self.name = name
        self._logs = tempfile.TemporaryDirectory()
        self.members: list[Member] = []
        try:
            for number, place in enumerate(places):
                log = Path(self._logs.name) / f"{number}.log"
                self.members.append(Member(lab, place, log))
        except BaseException:
            self.close()
            raise
        self._leaders = self.members[:leaders]

    def ready(self, limit: float = READY_LIMIT) -> None:
        end = time.monotonic() + limit
        for member in self._leaders:
            member.hear("ready", end)

    def block(self, steps: int, limit: float = BLOCK_LIMIT) -> float:
        """Seconds a step: of the slowest, because it is the last that has the result."""
        end = time.monotonic() + limit
        for member in self._leaders:
            member.tell(f"go {steps}")
        return max(float(member.hear("took", end)[0]) for member in self._leaders) / steps

    def close(self) -> None:
        for member in self.members:
            member.end()
        self._logs.cleanup()


class Keys:
    """A folder that all machines see, with the key and the pool of a lab's phalanx runs."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self.folder = lab, folder
        self._key = folder / "run.key"
        self._key.touch(mode=0o600)
        self._key.write_text(RunKey.new().text())
        lab.write_blueprint(folder / "lab.yaml")
        self._port = 9900

    def team(
        self,
        script: str,
        machines: Sequence[str],
        strategy: str,
        *,
        server: str | None = None,
        cores: Sequence[int | None] = (),
        words: Sequence[str] = (),
        variables: Mapping[str, str] = NOTHING,
    ) -> list[Place]:
        """``phalanx worker SCRIPT`` on each of ``machines``; perhaps a server apart."""
        self._port += 10
        where = [*machines, server] if server else list(machines)
        shared = {
            "PHALANX_KEY_FILE": str(self._key),
            "PHALANX_POOL": str(self.folder / "lab.yaml"),
            "PHALANX_MEET": f"{self._lab.machine(machines[0]).address}:{self._port}",
            "PHALANX_RUNS": str(self.folder / "runs"),
            "PHALANX_PROCESSES": str(len(where)),
            **variables,
        }
        command = phalanx_command("worker", script, "--strategy", strategy, "--", *words)
        serve = phalanx_command("worker", "--serve", "--strategy", strategy)
        return [
            Place(
                machine,
                serve if number == len(machines) else command,
                {**shared, "PHALANX_PROCESS": str(number)},
                cores[number] if number < len(cores) else None,
            )
            for number, machine in enumerate(where)
        ]


Tell = Callable[[str, str], None]


def lost(name: str, reason: str) -> None:
    report(f"{name} could not be measured", reason=reason)


def start_teams(
    lab: Lab, places: Mapping[str, Sequence[Place]], ends: ExitStack
) -> dict[str, Team]:
    """One after another; a system that does not come up ends the benchmark."""
    teams = {}
    for name, processes in places.items():
        teams[name] = Team(name, lab, processes)
        ends.callback(teams[name].close)
        teams[name].ready()
    return teams


def in_turns(
    teams: dict[str, Team], steps: Callable[[str], int], rounds: int, lost: Tell
) -> dict[str, list[float]]:
    """Each team once per round; only one computes at a time. A team that fails is left out."""
    found: dict[str, list[float]] = {name: [] for name in teams}
    for number in range(-1, rounds):  # the first round warms up
        order = list(found) if number % 2 else list(reversed(found))
        for name in order:
            try:
                seconds = teams[name].block(steps(name))
            except Failed as failure:
                lost(name, str(failure))
                del found[name]
            else:
                if number >= 0:
                    found[name].append(seconds)
    return found
