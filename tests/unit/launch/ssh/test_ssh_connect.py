"""Logging in: known, unknown and changed host keys, wrong users and keys, jump hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import pytest
from ssh_servers import USER, new_key, ssh_server, write_client_key

from phalanx.core.errors import MachineError
from phalanx.launch.pool.pool_trust import in_waves, look_at
from phalanx.launch.ssh.known_keys import keys_in, known_keys, record
from phalanx.launch.ssh.ssh_connect import connect
from phalanx.pool.jumps import resolve_ways
from phalanx.pool.machine import Machine

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 30))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".ssh").mkdir(parents=True)


def machine(port: int, folder: Path, name: str = "alpha", **fields: Any) -> Machine:
    known = {"user": USER, "known_keys": str(folder / "pool.known_hosts"), **fields}
    return Machine(name=name, host="127.0.0.1", port=port, **known)


async def hello(target: Machine) -> str:
    connection = await connect(target)
    try:
        return str((await connection.run("anything")).stdout).strip()
    finally:
        connection.close()
        await connection.wait_closed()


def test_the_keys_of_the_pool_and_those_of_the_user(tmp_path: Path) -> None:
    key, allowed = write_client_key(tmp_path)
    host_key = new_key()

    async def work() -> None:
        async with ssh_server(host_key, allowed) as port:
            alpha = machine(port, tmp_path, key=str(key))
            with pytest.raises(MachineError, match=r"is not known: SHA256:") as unknown:
                await connect(alpha)
            assert "phalanx pool trust" in unknown.value.remedy
            file = tmp_path / "pool.known_hosts"
            record(file, [(alpha, host_key)])
            assert await hello(alpha) == "hello"
            file.rename(tmp_path / "home" / ".ssh" / "known_hosts")
            assert await hello(alpha) == "hello"

    run(work())


def test_a_changed_key_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    key, allowed = write_client_key(tmp_path)
    old, new = new_key(), new_key()

    async def work() -> None:
        async with ssh_server(new, allowed) as port:
            alpha = machine(port, tmp_path, key=str(key))
            file = tmp_path / "pool.known_hosts"
            file.write_text("# a comment\n")
            record(file, [(alpha, old)])
            (tmp_path / "home" / ".ssh" / "known_hosts").write_text(
                f"[127.0.0.1]:{port} {new.export_public_key().decode()}"
            )
            with pytest.raises(MachineError, match="changed host key") as caught:
                await connect(alpha)
            for words in (old.get_fingerprint(), new.get_fingerprint(), f"{file}:2"):
                assert words in caught.value.cause

    run(work())


def test_a_key_of_another_type_is_a_changed_key(tmp_path: Path) -> None:
    key, allowed = write_client_key(tmp_path)

    async def work() -> None:
        async with ssh_server(new_key("ecdsa-sha2-nistp256"), allowed) as port:
            alpha = machine(port, tmp_path, key=str(key))
            record(tmp_path / "pool.known_hosts", [(alpha, new_key())])
            with pytest.raises(MachineError, match="changed host key: not of type ssh-ed25519"):
                await connect(alpha)
            (shown,) = await look_at([alpha])
            assert (shown.status, shown.kind) == ("changed", "ecdsa-sha2-nistp256")

    run(work())


def test_a_fingerprint_in_the_blueprint_decides(tmp_path: Path) -> None:
    key, allowed = write_client_key(tmp_path)
    host_key = new_key("ecdsa-sha2-nistp256")

    async def work() -> None:
        async with ssh_server(host_key, allowed) as port:
            pinned = {"key": str(key), "host_key": host_key.get_fingerprint()}
            assert await hello(machine(port, tmp_path, **pinned)) == "hello"
            wrong = machine(port, tmp_path, key=str(key), host_key="SHA256:" + "a" * 43)
            with pytest.raises(MachineError, match="the blueprint has SHA256:aaa"):
                await connect(wrong)
            assert [s.status for s in await look_at([wrong])] == ["changed"]

    run(work())


@pytest.mark.parametrize("wrong", ["user", "key", "password"])
def test_who_may_not_in(tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, allowed = write_client_key(tmp_path)
    host_key = new_key()
    fields: dict[str, Any] = {"key": str(key)}
    if wrong == "user":
        fields["user"] = "mallory"
    elif wrong == "key":
        (tmp_path / "other").mkdir()
        fields["key"] = str(write_client_key(tmp_path / "other")[0])
    else:
        monkeypatch.setenv("THE_PASSWORD", "wrong words")
        fields = {"password": "env:THE_PASSWORD"}

    async def work() -> None:
        async with ssh_server(host_key, allowed) as port:
            alpha = machine(port, tmp_path, host_key=host_key.get_fingerprint(), **fields)
            with pytest.raises(MachineError, match=r"rejected the login of (ml|mallory)") as caught:
                await connect(alpha)
            assert "wrong words" not in str(caught.value)

    run(work())


def test_a_password_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, allowed = write_client_key(tmp_path)
    host_key = new_key()
    monkeypatch.setenv("THE_PASSWORD", "right words")

    async def work() -> str:
        async with ssh_server(host_key, allowed) as port:
            pinned = host_key.get_fingerprint()
            return await hello(
                machine(port, tmp_path, host_key=pinned, password="env:THE_PASSWORD")
            )

    assert run(work()) == "hello"


def test_through_a_jump_host_which_is_left_at_the_end(tmp_path: Path) -> None:
    key, allowed = write_client_key(tmp_path)
    gate_key, inner_key = new_key(), new_key()

    async def work() -> None:
        async with ssh_server(gate_key, allowed) as gate, ssh_server(inner_key, allowed) as inner:
            fields = {"key": str(key)}
            machines = resolve_ways(
                [machine(gate, tmp_path, "gate", **fields),
                 machine(inner, tmp_path, "inner", jump="gate", **fields)],
                tmp_path / "pool.known_hosts",
            )  # fmt: skip
            target = machines[1]
            assert target.via is not None
            with pytest.raises(MachineError, match=r"the host key of gate .* is not known"):
                await connect(target)
            first, second = in_waves([target])
            assert [[m.name for m in wave] for wave in (first, second)] == [["gate"], ["inner"]]
            for wave in (first, second):
                shown = await look_at(wave)
                assert [each.status for each in shown] == ["new"]
                record(tmp_path / "pool.known_hosts", [(s.machine, s.key) for s in shown if s.key])
            through = await connect(target)
            tunnel = through.get_owner().tunnel  # type: ignore[attr-defined]
            assert str((await through.run("x")).stdout) == "hello\n"
            through.close()
            await through.wait_closed()
            await tunnel.wait_closed()

    run(work())


def test_a_wrong_key_of_the_jump_host_is_a_hard_stop(tmp_path: Path) -> None:
    key, allowed = write_client_key(tmp_path)
    host_key = new_key()

    async def work() -> None:
        async with ssh_server(host_key, allowed) as gate, ssh_server(host_key, allowed) as inner:
            door = machine(gate, tmp_path, "gate", key=str(key))
            record(tmp_path / "pool.known_hosts", [(door, new_key())])
            target = machine(inner, tmp_path, "inner", key=str(key), via=door)
            with pytest.raises(MachineError, match=r"^gate .* shows a changed host key"):
                await connect(target)

    run(work())


def test_records_are_openssh_lines_and_hashed_ones_are_found(tmp_path: Path) -> None:
    file = tmp_path / "pool.known_hosts"
    alpha, key = machine(2222, tmp_path), new_key()
    record(file, [(alpha, key)])
    assert file.read_text().startswith("[127.0.0.1]:2222 ssh-ed25519 AAAA")
    assert [k.fingerprint for k in known_keys(alpha)] == [key.get_fingerprint()]
    hashed = "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg="
    other = Machine(name="b", host="192.168.1.61")
    file.write_text(f"broken line\n{hashed} {key.export_public_key().decode()}")
    assert [(k.line, k.fingerprint) for k in keys_in(file, other)] == [(2, key.get_fingerprint())]
    assert isinstance(key, asyncssh.SSHKey)
