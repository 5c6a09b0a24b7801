"""Works in processes of their own: all are done, or the first error ends them."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from phalanx.core.errors import InputError, RunStopped
from phalanx.launch.profile.profile_job import side_by_side
from phalanx.launch.run.interrupts import Interrupts


def _write(path: Path) -> None:
    path.write_text(str(os.getpid()))


def _refuse() -> None:
    raise InputError("no", "Try another.")


def _wait_to_be_stopped(path: Path) -> None:
    """As a controller does."""
    with Interrupts() as interrupts:
        path.touch()
        while not interrupts.asked():
            time.sleep(0.01)
    path.unlink()
    raise RunStopped


def test_all_are_done_each_in_a_process_of_its_own(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(3)]
    side_by_side([functools.partial(_write, file) for file in files])
    assert len({file.read_text() for file in files} | {str(os.getpid())}) == 4


def test_an_error_of_one_ends_the_others_and_is_raised(tmp_path: Path) -> None:
    waiting = functools.partial(_wait_to_be_stopped, tmp_path / "waits")
    with pytest.raises(InputError) as found:
        side_by_side([waiting, _refuse])
    assert (found.value.cause, found.value.remedy) == ("no", "Try another.")
    assert not (tmp_path / "waits").exists()


def test_being_interrupted_stops_them_all(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]

    def interrupt() -> None:
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(RunStopped):
        side_by_side([functools.partial(_wait_to_be_stopped, file) for file in files])
    assert not any(file.exists() for file in files)
