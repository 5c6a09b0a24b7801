"""A real agent of this machine, spoken to frame by frame."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.agent.frames import pack, unpack
from phalanx.agent.system import readable
from phalanx.launch.link.agent_link import agent_command, agent_sources

SECONDS = 20.0


class AgentProcess:
    """An agent's process with its pipes; what it tells is kept while answers are awaited."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[dict[str, Any]] = []
        self.files: dict[str, bytearray] = {}
        """What was told of each; every part has to begin where the one before ended."""
        self.pinging = True
        self.pid = 0
        self._number = 0
        self._process = subprocess.Popen(
            agent_command(sys.executable, "test"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._sending = threading.Lock()
        self.write(agent_sources())
        threading.Thread(target=self._ping, daemon=True).start()

    @property
    def guardian(self) -> int:
        return self._process.pid

    def write(self, data: bytes) -> None:
        assert self._process.stdin
        with self._sending:
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def greet(self, **fields: Any) -> dict[str, Any]:
        words = {"name": "here", "run": "test", "folder": str(self.folder), **fields}
        answer = self.ask("hello", **words)
        self.pid = answer.get("pid", 0)
        return answer

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        """The answer, or the problem."""
        self._number += 1
        self.write(pack({"ask": what, "id": self._number, **fields}))
        while True:
            header = self.receive()
            if self._number in (header.get("answer"), header.get("problem")):
                return header

    def start(self, *commands: list[str], **fields: Any) -> dict[int, int]:
        workers = [{"rank": n, "argv": words, **fields} for n, words in enumerate(commands)]
        pids = self.ask("start", workers=workers)["pids"]
        return {int(rank): pid for rank, pid in pids.items()}

    def receive(self) -> dict[str, Any]:
        header, payload = unpack(self._read)
        if "tell" in header:
            self.told.append(header)
        if header.get("tell") == "chunk":
            file = self.files.setdefault(header["file"], bytearray())
            assert header["offset"] == len(file)
            file += payload
        return header

    def exits(self, count: int) -> dict[int, int]:
        """The codes of the first ``count`` workers that end; nobody's end is told twice."""
        while len(ends := [told for told in self.told if told["tell"] == "exited"]) < count:
            self.receive()
        codes = {told["rank"]: told["code"] for told in ends}
        assert len(codes) == len(ends)
        return codes

    def log(self, rank: int) -> bytes:
        return bytes(self.files.get(f"logs/rank-{rank}.log", b""))

    def log_with(self, rank: int, wanted: bytes) -> bytes:
        """The log of a rank once it ends with this."""
        while not self.log(rank).endswith(wanted):
            self.receive()
        return self.log(rank)

    def close_input(self) -> None:
        self.pinging = False
        assert self._process.stdin
        with self._sending:
            self._process.stdin.close()

    def wait(self) -> int:
        return self._process.wait(SECONDS)

    def errors(self) -> str:
        assert self._process.stderr
        return self._process.stderr.read().decode()

    def end(self) -> None:
        self.pinging = False
        for pid in (self.pid, self.guardian):
            if pid and is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait(SECONDS)

    def _ping(self) -> None:
        while True:
            time.sleep(0.1)
            if not self.pinging:
                return
            try:
                self.write(pack({"ask": "ping", "sent": 1.0}))
            except (OSError, ValueError):
                return

    def _read(self, count: int) -> bytes:
        assert self._process.stdout
        source, data = self._process.stdout.fileno(), b""
        while len(data) < count:
            assert readable([source], SECONDS), "the agent says nothing"
            part = os.read(source, count - len(data))
            if not part:
                raise EOFError
            data += part
        return data


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_gone(*pids: int) -> None:
    deadline = time.monotonic() + SECONDS
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "somebody is left"
        time.sleep(0.02)


@pytest.fixture
def new_agent(tmp_path: Path) -> Iterator[Callable[[], AgentProcess]]:
    """Makes agents; they are gone after the test."""
    made: list[AgentProcess] = []

    def make() -> AgentProcess:
        made.append(AgentProcess(tmp_path / "phalanx"))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def agent(new_agent: Callable[[], AgentProcess]) -> AgentProcess:
    """One that was greeted."""
    one = new_agent()
    one.greet()
    return one
