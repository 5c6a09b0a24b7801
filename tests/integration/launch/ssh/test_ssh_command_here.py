"""The interface of commands on machines, on this one. (Over SSH: the tests on a lab.)"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from phalanx.core.errors import InputError
from phalanx.launch.ssh.ssh_command import ERRORS_KEPT, start_command
from phalanx.launch.ssh.ssh_login import login_options
from phalanx.pool.machine import Machine

T = TypeVar("T")
HERE = Machine(name="box", host="here")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 30))


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def test_input_lines_and_words_with_anything_in_them() -> None:
    program = "import sys; print(sys.argv[1:]); print(sys.stdin.readline().upper(), end='')"
    words = ["a b", "$HOME; echo", "'\"", ""]

    async def work() -> tuple[bytes | None, bytes | None, bytes | None, int | None]:
        async with await start_command(HERE, python(program, *words)) as command:
            first = await command.line(10)
            await command.write(b"hello\n")
            return first, await command.line(10), await command.line(10), await command.wait(10)

    assert run(work()) == (repr(words).encode(), b"HELLO", None, 0)


def test_leaving_ends_it_and_a_late_line_is_an_error() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

    async def work() -> int:
        async with await start_command(HERE, python(program)) as command:
            pid = int(await command.line(10) or 0)
            with pytest.raises(TimeoutError):
                await command.line(0.05)
        return pid

    with pytest.raises(ProcessLookupError):
        os.kill(run(work()), 0)


def test_its_last_words_are_kept_but_not_all_of_them() -> None:
    program = "import sys; sys.stderr.write('x' * 300_000 + ' the end'); sys.exit(7)"

    async def work() -> tuple[int | None, str]:
        async with await start_command(HERE, python(program)) as command:
            code = await command.wait(10)
            while not command.errors.endswith("the end"):
                await asyncio.sleep(0.01)
            return code, command.errors

    code, errors = run(work())
    assert code == 7
    assert len(errors) <= ERRORS_KEPT


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(InputError, match="cannot start /nowhere/python: no such file"):
        run(start_command(HERE, ["/nowhere/python"]))


def test_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "id"
    key.write_text("")

    def options(**fields: Any) -> dict[str, Any]:
        return login_options(Machine(name="a", host="a.example", **fields))

    assert options() == {"config": None}
    assert options(user="ml", key=str(key)) == {
        "config": None, "username": "ml", "client_keys": [str(key)], "agent_path": None,
    }  # fmt: skip
    assert options(password=f"key:{key}")["client_keys"] == [str(key)]
    assert options(password="agent") == {"config": None}
    monkeypatch.setenv("THE_PASSWORD", "secret")
    assert options(password="env:THE_PASSWORD")["password"] == "secret"
    assert options(password="inline words")["password"] == "inline words"
    assert options(host_key="SHA256:" + "a" * 43)["known_hosts"] == ([], [], [])
    for wrong in ({"password": "env:NOT_SET"}, {"key": str(tmp_path / "none")}):
        with pytest.raises(InputError, match="of a "):
            options(**wrong)
