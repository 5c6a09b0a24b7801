"""Questions to a seat over a real connection: answers, errors, and losses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from channel_pairs import channel_pair

from phalanx.launch.cluster.seat import WorkerSeat
from phalanx.launch.cluster.seats import SeatLost
from phalanx.launch.cluster.spark_launcher import SparkLauncher
from phalanx.launch.cluster.spark_task import serve
from phalanx.sync.connect.channel import Channel


class Asking(SparkLauncher):
    """A launcher with one seat, at the end of a channel."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channels[0] = channel

    def __call__(self, method: str, *given: Any) -> Any:
        return self._answer(self._ask(0, method, *given))


@pytest.fixture(params=[False, True])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Asking]:
    (tmp_path / "mark").touch()
    with channel_pair(tls=request.param) as (near, far):
        make = lambda: WorkerSeat(0, "127.0.0.1", str(tmp_path), "mark", 2, "cpu")  # noqa: E731
        thread = threading.Thread(target=serve, args=(far, make))
        thread.start()
        yield Asking(near)
        near.close()
        thread.join(20.0)
        assert not thread.is_alive()


def test_a_seat_answers(ask: Asking, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"abcdef" * 1_000_000)
    note, shared, _ = ask("look")
    assert shared and b'"threads":2' in note
    assert ask("piece", "log", 6)[:6] == b"abcdef"
    assert ask("poll", {"log": 5_999_997}) == [None, {"log": b"def"}, []]


def test_what_goes_wrong_in_a_seat_is_told_and_it_goes_on(ask: Asking) -> None:
    with pytest.raises(SeatLost, match="TypeError"):
        ask("port")
    assert ask("port", "127.0.0.1") > 0


def test_a_lost_seat_is_told_at_once(ask: Asking) -> None:
    ask._channels[0].close()
    with pytest.raises(SeatLost, match="is gone"):
        ask("look")


def test_a_worker_ends_with_its_connection(tmp_path: Path) -> None:
    import msgspec

    from phalanx.launch.launcher import WorkerCommand

    (tmp_path / "mark").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "machines").mkdir()
    worker = WorkerCommand(
        rank=0, machine="here", argv=["python", "-c", "import time; time.sleep(600)"], env={},
        cpus=[], threads=1, log="logs/rank-0.log",
    )  # fmt: skip
    with channel_pair() as (near, far):
        seat = WorkerSeat(0, "127.0.0.1", str(tmp_path), "mark")
        thread = threading.Thread(target=serve, args=(far, lambda: seat))
        thread.start()
        pid = Asking(near)("start", msgspec.json.encode(worker), str(tmp_path), {}, 0.0)
        os.kill(pid, 0)
        near.close()
        thread.join(20.0)
    deadline = time.monotonic() + 10.0
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
