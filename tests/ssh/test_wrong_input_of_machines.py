"""Machines that are not as the blueprint says: one line each, by ``pool check`` and by ``run``."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_machines import run_in
from ssh_runs import Bench, Ended, nothing_left

from phalanx.lab.lab import Lab

SILENT = """
import socket, time
server = socket.create_server(("0.0.0.0", 2222))
print("listening", flush=True)
time.sleep(600)
"""


def both(bench: Bench, pool: Path, *words: str) -> tuple[Ended, Ended]:
    """``pool check`` and ``run``."""
    check = bench.do("pool", "check", str(pool))
    run = bench.do("run", "train.py", "--pool", str(pool), "--epochs", "1", *words)
    print(f"{run.text}\n{run.code} after {run.seconds:.1f} s")
    nothing_left(bench.lab, "m1", "m2")
    for ended in (check, run):
        assert "Traceback" not in ended.text
    return check, run


def refused(bench: Bench, line: str, remedy: str, code: int = 3, **changes: Any) -> None:
    """Both say ``line`` and ``remedy``, of m2."""
    for ended in both(bench, bench.blueprint(m2=changes)):
        assert ended.code == code
        assert re.search(line, ended.words), ended.text
        assert remedy in ended.words
        assert ended.text.count("error: ") == 1


def put(lab: Lab, path: str, text: str) -> str:
    """A program on m2, which has folders of its own."""
    run_in(lab, "m2", ["sh", "-c", f"printf %s {shlex.quote(text)} > {path}; chmod 755 {path}"])
    return path


@contextmanager
def shell(lab: Lab, program: str) -> Iterator[None]:
    """Another login shell for m2's user."""
    before = run_in(lab, "m2", ["cat", "/etc/passwd"])
    home, given = "/run/home", re.search(r"^root:.*:/run/home:(.*)$", before, re.MULTILINE)
    assert given is not None
    write = "cat > /etc/passwd"
    after = before.replace(f":{home}:{given[1]}", f":{home}:{program}")
    subprocess.run(
        lab.command("m2", ["sh", "-c", write]), input=after + "\n", text=True, check=True
    )
    try:
        yield
    finally:
        subprocess.run(
            lab.command("m2", ["sh", "-c", write]), input=before + "\n", text=True, check=True
        )


@pytest.mark.parametrize(
    ("changes", "line", "remedy"),
    [
        ({"user": "nobody-here"}, r"m2 \S+ rejected the login of nobody-here", "Check user, key"),
        ({"python": "/no/such"}, "m2 has no command '/no/such'", "Set 'python' in the blueprint"),
        ({"folder": "/proc/phalanx"}, r"m2: cannot create /proc/phalanx", "'folder'"),
        ({"host": "NOWHERE"}, r"m2 \(\S+\) cannot be reached: no route", "Check that it is up"),
    ],
)
def test_what_the_blueprint_says_and_is_not_so(
    bench: Bench, changes: dict[str, str], line: str, remedy: str
) -> None:
    nowhere = bench.lab.gateway.rsplit(".", 1)[0] + ".250"
    given = {name: value.replace("NOWHERE", nowhere) for name, value in changes.items()}
    refused(bench, line, remedy, **given)


def test_python_without_torch(bench: Bench) -> None:
    """Not for ``pool check`` to refuse: the project may say what is to be installed."""
    check, run = both(bench, bench.blueprint(m2={"python": "/usr/bin/python3"}))
    for ended in (check, run):
        assert re.search(r"m2: /usr/bin/python3 has no torch", ended.words), ended.text
        assert "requirements.txt" in ended.words
    assert "ready" not in check.words
    assert (check.code, run.code) == (0, 3)


def test_no_space(bench: Bench) -> None:
    folder = "/run/home/small"
    run_in(bench.lab, "m2", ["mkdir", "-p", folder])
    run_in(bench.lab, "m2", ["mount", "-t", "tmpfs", "-o", "size=300k,mode=0700", "tmpfs", folder])
    try:
        refused(bench, r"m2.*(free|space)", "'folder'", folder=folder)
    finally:
        run_in(bench.lab, "m2", ["umount", folder])


def test_a_machine_that_does_not_answer(bench: Bench) -> None:
    command = bench.lab.command("m2", ["python3", "-u", "-c", SILENT])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as silent:
        try:
            assert silent.stdout is not None
            silent.stdout.readline()
            pool = bench.blueprint(m2={"port": 2222})
            check = bench.do("pool", "check", str(pool))
            run = bench.do("run", "train.py", "--pool", str(pool))
        finally:
            silent.kill()
    for ended in (check, run):
        print(ended)
        assert ended.code == 3
        assert re.search(r"m2 \(\S+:2222\) does not answer", ended.words)


def test_no_shell(bench: Bench) -> None:
    with shell(bench.lab, "/usr/sbin/nologin"):
        line = r"m2 \S+ cannot start a command: it printed 'This account is currently not available"
        refused(bench, line, "Check that its SSH server allows commands")


def test_a_shell_that_talks(bench: Bench) -> None:
    noisy = '#!/bin/sh\necho Welcome to our computing centre, enjoy your stay\nexec /bin/sh "$@"\n'
    with shell(bench.lab, put(bench.lab, "/run/home/noisy", noisy)):
        line = r"m2 \S+ cannot start a command: it printed 'Welcome to our computing centre, enjoy"
        refused(bench, line, "its login shell prints nothing")
