"""``phalanx pool check|trust|init`` on this machine and on servers of loopback."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from cli_support import Shell
from found_machines import facts
from rich.console import Console
from ssh_servers import PASSWORD, USER, new_key, ssh_server, write_client_key

from phalanx.cli.show import check_words
from phalanx.core.errors import MachineError
from phalanx.launch.pool.pool_check import Check, Knock, Visit
from phalanx.pool.machine import Machine


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@contextmanager
def serving(host_key: object, allowed: str) -> Iterator[int]:
    """An SSH server in a thread of its own, so that a command line can be run beside it."""
    ready, done = threading.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        async with ssh_server(host_key, allowed) as port:  # type: ignore[arg-type]
            ports.append(port)
            ready.set()
            await asyncio.to_thread(done.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield ports[0]
    finally:
        done.set()
        thread.join(20)


def test_checking_this_machine(shell: Shell) -> None:
    (shell.folder / "pool.yaml").write_text("machines: {box: {host: here}}")
    answer = shell("pool", "check", "pool.yaml", "--json")
    assert answer.code == 0, answer.err
    (machine,) = answer.json["machines"]
    assert (machine["name"], machine["reachable"]) == ("box", True)
    assert machine["facts"]["cores"] >= 1
    assert abs(machine["clock_skew"]) < 5
    assert answer.json["findings"] == []


def test_a_machine_that_is_not_there(shell: Shell) -> None:
    text = "machines: {box: {host: here}, gone: {host: 127.0.0.1, port: 1, user: x}}"
    (shell.folder / "pool.yaml").write_text(text)
    answer = shell("pool", "check", "pool.yaml")
    assert answer.code == 3
    assert "gone (127.0.0.1:1) cannot be reached: connection refused" in answer.err
    row = next(line for line in answer.out.splitlines() if line.startswith("gone"))
    assert row.split()[1] == "no"


def test_trust(shell: Shell, tmp_path: Path) -> None:
    key, allowed = write_client_key(tmp_path)
    host_key = new_key()
    with serving(host_key, allowed) as port:
        fields = f"{{host: 127.0.0.1, port: {port}, user: {USER}, key: {key}}}"
        (shell.folder / "pool.yaml").write_text(f"machines: {{alpha: {fields}}}")
        known = shell.folder / "pool.known_hosts"
        unasked = shell("pool", "trust", "pool.yaml")
        assert (unasked.code, known.exists()) == (2, False)
        assert host_key.get_fingerprint() in unasked.out
        assert shell("pool", "trust", "pool.yaml", "--yes").code == 0
        assert known.read_text().startswith(f"[127.0.0.1]:{port} ssh-ed25519 ")
        again = shell("pool", "trust", "pool.yaml", "--yes", "--json")
        assert [each["status"] for each in again.json["keys"]] == ["known"]
        other = new_key().export_public_key().decode()
        known.write_text(f"[127.0.0.1]:{port} {other}")
        changed = shell("pool", "trust", "pool.yaml", "--yes")
        assert changed.code == 3
        assert "pool.known_hosts:1 has SHA256:" in changed.err
        assert known.read_text() == f"[127.0.0.1]:{port} {other}"


def test_init_of_this_machine_never_overwrites(shell: Shell) -> None:
    made = shell("pool", "init", "here")
    assert made.code == 0, made.err
    assert "next: phalanx pool check pool.yaml" in made.out
    text = (shell.folder / "pool.yaml").read_text()
    assert "host: here" in text
    again = shell("pool", "init", "here")
    assert (again.code, "already exists" in again.err) == (2, True)
    assert (shell.folder / "pool.yaml").read_text() == text
    assert shell("pool", "init", "--out", "other.yaml").code == 2


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
ONLY_PASSWORDS = new_key().export_public_key().decode()
"""The key that is let in has been thrown away."""


def name_in_ssh_config(*ports: int) -> list[str]:
    """An alias for each port of loopback."""
    folder = Path.home() / ".ssh"
    folder.mkdir()
    names = [f"m{number}" for number in range(len(ports))]
    (folder / "config").write_text(
        "".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  User {USER}\n"
            for name, port in zip(names, ports, strict=True)
        )
    )
    return names


@needs_ssh
def test_init_with_a_password_of_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_PASSWORD", PASSWORD)
    with serving(new_key(), ONLY_PASSWORDS) as port:
        (name,) = name_in_ssh_config(port)
        words = ("pool", "init", "here", name, "--yes")
        refused = shell(*words, "--out", "without.yaml")
        entered = shell(*words, "--password", "env:LAB_PASSWORD")
        monkeypatch.setenv("LAB_PASSWORD", "wrong words")
        wrong = shell(*words, "--password", "env:LAB_PASSWORD", "--out", "wrong.yaml")
    assert (
        "rejected the login of ml\nhint: If it accepts passwords: --password prompt" in refused.err
    )
    assert "rejected the login of ml\nhint: Check --user and the password" in wrong.err
    assert "cannot start a command: it printed 'hello'" in entered.err, "it was let in"
    text = (shell.folder / "pool.yaml").read_text()
    here, left_out = text.split("  # m0: ")
    assert "password" not in here
    assert '"env:LAB_PASSWORD"' in left_out
    for said in (text, entered.out, entered.err, wrong.out, wrong.err):
        assert PASSWORD not in said and "wrong words" not in said


@needs_ssh
def test_init_asks_for_one_password_once(shell: Shell) -> None:
    """Without a terminal it is read from standard input, where only one line is."""
    with serving(new_key(), ONLY_PASSWORDS) as one, serving(new_key(), ONLY_PASSWORDS) as other:
        names = name_in_ssh_config(one, other)
        words = ["pool", "init", "here", *names, "--yes", "--password", "prompt"]
        ended = subprocess.run(
            [sys.executable, "-m", "phalanx", *words],
            input=f"{PASSWORD}\n",
            start_new_session=True,
            cwd=shell.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert "password of these 2 machines: " in ended.stderr
    assert ended.stderr.count("cannot start a command: it printed 'hello'") == 2
    text = (shell.folder / "pool.yaml").read_text()
    assert text.count('password: "prompt"') == 2
    assert PASSWORD not in text + ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (
            "swordfish",
            "never the password itself\nhint: Other users can see the arguments of a command",
        ),
        ("env:sword-fish", "env: needs the name of a variable"),
        ("env:NOT_SET_AT_ALL", "is not set\nhint: Set it: read -rs NOT_SET_AT_ALL && export"),
        ("key:~/swordfish", "Give a key with --key"),
        ("", "a password cannot be empty"),
    ],
)
def test_init_takes_references_only(shell: Shell, reference: str, words: str) -> None:
    answer = shell("pool", "init", "nobody.invalid", "--password", reference, "--json")
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.errors) == 2
    assert "fish" not in answer.err + answer.out


def shown(*tables: object) -> list[str]:
    console = Console(file=StringIO(), width=80)
    for table in tables:
        console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_eighty_columns() -> None:
    long = "m" * 60
    machine = Machine(name=long, host="10.0.0.2")
    wide = Visit(machine, facts=facts(user="u" * 30, cores=1024, memory=2**45, disk_free=2**46))
    wide.python, wide.torch, wide.skew = "3.11.10", "2.13.0+cu130", -86400.0 * 400
    wide.address = "fd00:1111:2222:3333:4444:5555:6666:7777"
    lost = Visit(Machine(name="x", host="x"), error=MachineError("away"))
    check = Check([wide, lost], [Knock("x", long, False, "no")])
    lines = shown(check_words.machines_table(check), check_words.reach_table(check))
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line.replace("mmm…", "").replace("uuu…", "")]
    assert lines[2].split() == ["x", "no", *["–"] * 8]
    assert "no other" in lines[-1]
