"""Machines that are not as the blueprint says: one line each, by ``pool check`` and by ``run``."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_machines import lab, run_in
from ssh_runs import Bench, Ended, nothing_left

from phalanx.lab.lab import Lab

pytestmark = pytest.mark.slow
__all__ = ["lab"]
OTHER_KEY = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
SILENT = """
import socket, time
server = socket.create_server(("0.0.0.0", 2222))
print("listening", flush=True)
time.sleep(600)
"""
AHEAD = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += 3600;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *kept) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (kept) *kept = fine.tv_sec;
    return fine.tv_sec;
}
"""
"""What libfaketime does; Debian's (0.9.10) has time.sleep of Python 3.11 fail."""
OLD_PYTHONS = {
    "3.8": ("3.6", "3.7"),
    "3.11": ("3.8", "3.9", "3.10"),
}
"""What agents and workers need, and what is older."""


def both(bench: Bench, pool: Path, *words: str) -> tuple[Ended, Ended]:
    """``pool check`` and ``run``."""
    check = bench.do("pool", "check", str(pool))
    run = bench.do("run", "train.py", "--pool", str(pool), "--epochs", "1", *words)
    print(f"\n{check.text}\n{check.code} after {check.seconds:.1f} s")
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


def test_changed_host_key_in_the_blueprint(bench: Bench) -> None:
    shown = bench.lab.machine("m2").host_key
    line = rf"m2 \S+ shows the host key {re.escape(shown)}, the blueprint has {OTHER_KEY}"
    refused(bench, line, "If the machine was reinstalled, correct host_key", host_key=OTHER_KEY)


def test_changed_host_key_in_the_file_of_keys(bench: Bench, tmp_path: Path) -> None:
    pool = bench.blueprint(m2={"host_key": None})
    address, shown = bench.lab.machine("m2").address, bench.lab.machine("m2").host_key
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True)
    kind, key, *_ = (tmp_path / "k.pub").read_text().split()
    pool.with_suffix(".known_hosts").write_text(f"{address} {kind} {key}\n")
    known = subprocess.run(
        ["ssh-keygen", "-lf", tmp_path / "k.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    for ended in both(bench, pool):
        assert ended.code == 3
        assert f"shows a changed host key: {shown}" in ended.words
        assert known in ended.words
        assert "phalanx pool trust" in ended.words


def test_unknown_user(bench: Bench) -> None:
    refused(
        bench, r"m2 \S+ rejected the login of nobody-here", "Check user, key", user="nobody-here"
    )


def test_wrong_key(bench: Bench, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True)
    refused(bench, r"m2 \S+ rejected the login of root", "Check user, key", key=str(tmp_path / "k"))


def test_no_key_file(bench: Bench) -> None:
    check, run = both(bench, bench.blueprint(m2={"key": "/no/such/key"}))
    for ended in (check, run):
        assert "the key of m2 does not exist: /no/such/key" in ended.words
        assert "Correct 'key' in the blueprint" in ended.words
    assert (check.code, run.code) == (3, 2)


def test_no_python(bench: Bench) -> None:
    line, remedy = "m2 has no command '/no/such'", "Set 'python' in the blueprint to its Python"
    refused(bench, line, remedy, python="/no/such")


def test_python_without_torch(bench: Bench) -> None:
    """Not for ``pool check`` to refuse: the project may say what is to be installed."""
    check, run = both(bench, bench.blueprint(m2={"python": "/usr/bin/python3"}))
    for ended in (check, run):
        assert re.search(r"m2: /usr/bin/python3 has no torch", ended.words), ended.text
        assert "requirements.txt" in ended.words
    assert "ready" not in check.words
    assert (check.code, run.code) == (0, 3)


@pytest.mark.parametrize("needed", OLD_PYTHONS)
def test_python_too_old(bench: Bench, needed: str) -> None:
    found = [python for version in OLD_PYTHONS[needed] for python in pythons(version)]
    if not found:
        pytest.skip("there is no old Python here")
    line, remedy = rf"m2.*{re.escape(needed)} or newer", "et 'python'"
    refused(bench, line, remedy, python=str(found[0]))


def test_python_of_long_ago(bench: Bench) -> None:
    found = pythons("2.7")
    if not found:
        pytest.skip("there is no Python 2 here")
    refused(bench, "m2: .* is not a Python 3", "'python' in the blueprint", python=str(found[0]))


def pythons(version: str) -> list[Path]:
    """Those of the system, and of pyenv."""
    kept = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    system = shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")
    return [*([Path(system)] if system else []), *kept]


def test_no_space(bench: Bench) -> None:
    folder = "/run/home/small"
    run_in(bench.lab, "m2", ["mkdir", "-p", folder])
    run_in(bench.lab, "m2", ["mount", "-t", "tmpfs", "-o", "size=300k,mode=0700", "tmpfs", folder])
    try:
        refused(bench, r"m2.*(free|space)", "'folder'", folder=folder)
    finally:
        run_in(bench.lab, "m2", ["umount", folder])


def test_a_folder_that_may_not_be_written(bench: Bench) -> None:
    refused(bench, r"m2: cannot create /proc/phalanx", "'folder'", folder="/proc/phalanx")


def test_clock_an_hour_ahead(bench: Bench, tmp_path: Path) -> None:
    source, library = tmp_path / "ahead.c", "/run/home/ahead.so"
    source.write_text(AHEAD)
    made = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "ahead.so"), str(source)]
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    subprocess.run(made, check=True)
    with (tmp_path / "ahead.so").open("rb") as bits:
        carry = bench.lab.command("m2", ["sh", "-c", f"cat > {library}"])
        subprocess.run(carry, stdin=bits, check=True)
    words = f'#!/bin/sh\nexport LD_PRELOAD={library}\nexec {_python(bench)} "$@"\n'
    late = put(bench.lab, "/run/home/late", words)
    check, run = both(bench, bench.blueprint(m2={"python": late}))
    assert check.code == 3
    assert "m2: its clock is 1 hour ahead of this machine's" in check.words
    assert "timedatectl" in check.words
    assert run.code == 0
    assert "m2: its clock is 1 hour ahead of this machine's" in run.words
    assert bench.summary()["seconds"] < 600


def _python(bench: Bench) -> str:
    found = re.search(r'"python": "([^"]*)"', bench.pool.read_text())
    assert found is not None
    return found[1]


def test_two_names_for_one_machine(bench: Bench) -> None:
    first = bench.lab.machine("m1")
    pool = bench.blueprint(m2={"host": first.address, "host_key": first.host_key})
    for ended in both(bench, pool):
        assert ended.code in (2, 3)
        assert re.search(r"m1.*m2.*are the same machine|same", ended.words), ended.text


def test_two_ways_to_write_one_address(bench: Bench) -> None:
    first = bench.lab.machine("m1")
    a, b, c, d = first.address.split(".")
    twin = f"{a}.{b}.{int(c) * 256 + int(d)}"
    for ended in both(bench, bench.blueprint(m2={"host": twin, "host_key": first.host_key})):
        assert ended.code in (2, 3)
        assert "are the same machine" in ended.words


def test_a_machine_that_is_not_there(bench: Bench) -> None:
    nowhere = bench.lab.gateway.rsplit(".", 1)[0] + ".250"
    refused(
        bench, rf"m2 \({nowhere}\) cannot be reached: no route", "Check that it is up", host=nowhere
    )


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
