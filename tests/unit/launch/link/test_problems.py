"""Several bad machines at once: each is named, with its cause and its remedy."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from ssh_servers import USER, new_key, ssh_server, write_client_key

from phalanx.core.errors import InputError, MachineError
from phalanx.launch.launchers.remote_run import RemoteRun
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
