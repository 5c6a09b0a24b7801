"""Signals against a real controller with real workers: nothing may be left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import launch_support
import pytest
from launch_support import alive, wait_until, write_script

SLEEP = "\njoin()\ntime.sleep(60)\n"
STUBBORN = "\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\njoin()\ntime.sleep(60)\n"
ORDERLY = """
from phalanx.core.errors import RunStopped
def stop(number, frame):
    raise RunStopped
signal.signal(signal.SIGTERM, stop)
join()
time.sleep(60)
"""


class Controller:
    """A controller process of two workers, ended with the test whatever happens."""

    def __init__(self, folder: Path, body: str) -> None:
        self.run = folder / "run"
        script = write_script(folder, body)
        self.process = subprocess.Popen(
            [sys.executable, launch_support.__file__, str(script), str(self.run), "2"],
            stdin=subprocess.DEVNULL,
        )

    def wait_for(self, *names: str) -> None:
        assert wait_until(lambda: all((self.run / name).exists() for name in names)), names

    def worker_pids(self) -> list[int]:
        names = ["files/pid-0", "files/pid-1"]
        self.wait_for(*names)
        assert wait_until(lambda: all((self.run / name).read_text() for name in names))
        return [int((self.run / name).read_text()) for name in names]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(timeout=60)

    def status(self) -> str:
        return str(json.loads((self.run / "summary.json").read_text())["status"])

    def exit_codes(self) -> list[int | None]:
        return list(json.loads((self.run / "summary.json").read_text())["exit_codes"])


@pytest.fixture
def started() -> Iterator[list[Controller]]:
    made: list[Controller] = []
    yield made
    for controller in made:
        controller.process.kill()
        controller.process.wait()


def start(made: list[Controller], folder: Path, body: str) -> Controller:
    made.append(Controller(folder, body))
    return made[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_in_order(
    tmp_path: Path, started: list[Controller], number: signal.Signals
) -> None:
    controller = start(started, tmp_path, ORDERLY)
    pids = controller.worker_pids()
    controller.signal(number)
    assert controller.exit_code() == 130
    assert not any(alive(pid) for pid in pids)
    assert controller.status() == "stopped" and controller.exit_codes() == [143, 143]
    assert not (controller.run / "controller.json").exists()


@pytest.mark.parametrize("awaited", ["controller.json", "launch.json", "logs/rank-0.log"])
def test_ctrl_c_while_it_starts(tmp_path: Path, started: list[Controller], awaited: str) -> None:
    controller = start(started, tmp_path, SLEEP)
    controller.wait_for(awaited)
    controller.signal(signal.SIGINT)
    assert controller.exit_code() == 130
    assert controller.status() == "stopped"
    assert not _mentioning(controller.run)


def test_workers_that_ignore_the_request_are_killed(
    tmp_path: Path, started: list[Controller]
) -> None:
    controller = start(started, tmp_path, STUBBORN)
    pids = controller.worker_pids()
    controller.signal(signal.SIGINT)
    assert controller.exit_code() == 130
    assert not any(alive(pid) for pid in pids)
    assert controller.exit_codes() == [-9, -9]


def test_a_second_ctrl_c_does_not_wait(
    tmp_path: Path, started: list[Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With this much grace the run would outlast the test, were it not cut short.
    monkeypatch.setenv("TEST_GRACE", "60")
    controller = start(started, tmp_path, STUBBORN)
    controller.worker_pids()
    controller.signal(signal.SIGINT)
    time.sleep(0.3)  # two signals at once would be delivered as one
    controller.signal(signal.SIGINT)
    assert controller.exit_code() == 130
    assert controller.exit_codes() == [-9, -9]


def test_workers_do_not_outlive_a_controller_that_is_killed(
    tmp_path: Path, started: list[Controller]
) -> None:
    controller = start(started, tmp_path, STUBBORN)
    pids = controller.worker_pids()
    assert all(alive(pid) for pid in pids)
    controller.signal(signal.SIGKILL)
    controller.exit_code()
    assert wait_until(lambda: not any(alive(pid) for pid in pids))


def _mentioning(folder: Path) -> list[int]:
    """The processes whose environment names ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or not alive(int(entry.name)):
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"PHALANX_RUN={folder}".encode() in environment:
            found.append(int(entry.name))
    return found
