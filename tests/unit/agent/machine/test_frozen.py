"""What a worker shows of its stack is found from outside, also when it is stopped."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import until

from phalanx.agent.machine import frozen
from phalanx.agent.machine.frozen import FrozenWorkers
from phalanx.observe.events.emit import StackWatch

SHOWS = """
import sys, threading, time
from phalanx.observe.events.emit import StackWatch
def slow_loss():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
watch = StackWatch()
watch.look()
looks = lambda: [watch.look() or time.sleep(0.05) for _ in iter(int, 1)]
threading.Thread(target=looks, daemon=True).start()
slow_loss()
"""
STACK = [("slow_loss", "/home/me/train.py", 42), ("<module>", "/home/me/train.py", 50)]
FRAMES = [{"name": name, "filename": file, "line": line} for name, file, line in STACK]
DUMP = [{"thread_name": "events", "frames": []}, {"thread_name": "MainThread", "frames": FRAMES}]


@pytest.fixture
def shows() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", SHOWS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def test_a_stopped_process_was_last_seen_where_it_was(shows: subprocess.Popen[str]) -> None:
    looks = FrozenWorkers()
    assert looks.among([shows.pid, os.getpid()]) is None
    time.sleep(0.2)
    shows.send_signal(signal.SIGSTOP)
    until(lambda: looks.among([shows.pid]) is not None, 10.0)
    (found,) = looks.among([shows.pid]) or []
    assert (found["pid"], found["state"]) == (shows.pid, "T")
    assert found["stack"][0].endswith(" slow_loss")
    shows.send_signal(signal.SIGCONT)
    until(lambda: looks.among([shows.pid]) is None, 10.0)


def test_a_process_whose_threads_do_not_run_is_frozen(
    shows: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "STALE", -1.0)  # as if it had shown nothing for long

    def is_told() -> bool:
        (found,) = FrozenWorkers().among([shows.pid]) or [{"state": "", "stack": [""]}]
        return found["state"] != "T" and bool(found["stack"][0].endswith(" slow_loss"))

    until(is_told, 10.0)


def test_py_spy_is_asked_where_it_is_installed(
    shows: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(DUMP)}\nEND\n")
    spy.chmod(spy.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shows.send_signal(signal.SIGSTOP)
    looks = FrozenWorkers()
    until(lambda: looks.among([shows.pid]) is not None, 10.0)
    (found,) = looks.among([shows.pid]) or []
    assert found["stack"] == ["/home/me/train.py:42 slow_loss", "/home/me/train.py:50 <module>"]


def test_a_watch_sees_where_a_thread_is_and_whether_it_computes() -> None:
    go, seen = threading.Event(), StackWatch()

    def look() -> None:
        for _ in range(2):
            seen.look()
            time.sleep(0.1)
        go.set()

    other = threading.Thread(target=look)
    other.start()
    go.wait(10.0)
    other.join()
    assert any(" wait" in frame for frame in seen.stack)
    assert any(Path(__file__).name in frame for frame in seen.stack)
    assert seen.busy is not None
    assert seen.busy < 0.5
    seen.close()
