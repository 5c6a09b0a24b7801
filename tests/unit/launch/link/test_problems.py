"""Several bad machines at once, waits that can be given up, and what an old Python can read."""

from __future__ import annotations

import ast
import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from ssh_servers import USER, new_key, ssh_server, write_client_key

from phalanx.core.errors import InputError, MachineError, RunStopped
from phalanx.launch.launcher import never
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.link.agent_link import agent_sources, boot_source
from phalanx.launch.link.event_loop import EventLoop, in_thread
from phalanx.launch.link.problems import as_one
from phalanx.launch.ssh.known_keys import record
from phalanx.pool.machine import Machine

DOWN = "Check that it is up, that this is its address, and that its SSH server runs."
REFUSED = "Check user, key and password in the blueprint."


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def error_of(run: RemoteRun) -> MachineError:
    async def connect() -> None:
        try:
            await run.connect()
        finally:
            await run.close()

    with pytest.raises(MachineError) as caught:
        asyncio.run(asyncio.wait_for(connect(), 60))
    return caught.value


def test_a_machine_that_is_down_and_one_that_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key, _ = write_client_key(tmp_path)
    other = new_key().export_public_key().decode()
    host_key, known = new_key(), tmp_path / "pool.known_hosts"
    fields = {"user": USER, "known_keys": str(known), "key": str(key), "host": "127.0.0.1"}

    async def work() -> MachineError:
        async with ssh_server(host_key, other) as port:
            m2 = Machine(name="m2", port=port, **fields)
            record(known, [(m2, host_key)])
            down = [Machine(name=name, port=closed_port(), **fields) for name in ("m1", "m3")]
            run = RemoteRun("run-1", [down[0], m2, down[1]])
            return await asyncio.to_thread(error_of, run)

    error = asyncio.run(asyncio.wait_for(work(), 60))
    causes = error.cause.split("; ")
    assert [cause.split()[0] for cause in causes] == ["m1", "m2", "m3"]
    assert "connection refused" in causes[0] and f"rejected the login of {USER}" in causes[1]
    assert error.remedy == f"m1, m3: {DOWN}\n  m2: {REFUSED}"
    assert error.exit_code == 3


def test_a_failed_machine_weighs_more_than_wrong_input() -> None:
    error = as_one({"m1": InputError("m1 has no key", "Add it."), "m2": MachineError("m2 is down")})
    assert isinstance(error, MachineError) and error.exit_code == 3
    assert error.remedy == "m1: Add it."


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    one = EventLoop()
    yield one
    one.close()


def test_waiting_ends_when_asked_and_when_late(loop: EventLoop) -> None:
    with pytest.raises(RunStopped):
        loop.wait(asyncio.sleep(300), lambda: True)
    with pytest.raises(TimeoutError):
        loop.wait(asyncio.sleep(300), never, 0.1)


def test_nobody_waits_for_a_thread_that_was_given_up(loop: EventLoop) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30.0)

    with pytest.raises(RunStopped):
        loop.wait(in_thread(work), begun.is_set)
    loop.close()
    go_on.set()


SOURCES: dict[str, str] = msgspec.json.decode(agent_sources())


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_an_old_python_can_read_it_and_has_all_that_it_imports(module: str) -> None:
    tree = ast.parse(SOURCES[module], feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in names:
            assert name.startswith("phalanx.agent") or name.split(".")[0] in sys.stdlib_module_names


def test_a_python_that_is_too_old_says_so() -> None:
    aged = f"import sys; sys.version_info = (3, 7, 1); exec({boot_source()!r})"
    ended = subprocess.run([sys.executable, "-c", aged, "0"], capture_output=True, text=True)
    assert ended.returncode == 9
    assert ended.stderr == "Phalanx needs Python 3.8 or newer, this is 3.7\n"


def test_sources_that_end_too_early_end_the_boot() -> None:
    words = [sys.executable, "-I", "-c", boot_source(), "100"]
    assert subprocess.run(words, input=b"{}", capture_output=True).returncode == 9
