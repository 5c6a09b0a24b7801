"""A worker that is stopped makes the others wait: somebody has to be told."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from launch_support import Recorder, make_job, start_without_torch, write_script
from made_events import finished, joined, steps

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.link.progress_notes import EACH_WORD, FIRST_WORD
from phalanx.launch.run import heartbeat as silence
from phalanx.launch.run.controller import execute
from phalanx.launch.run.event_tail import Relay
from phalanx.launch.run.heartbeat import LIMIT, STANDSTILL, Silence
from phalanx.observe.events.event_types import Alive, Event, WorkerLost, encode

STOPS = """
from phalanx.observe.events import emit
emit.SIGN_OF_LIFE = 0.25
writer = emit.EventWriter(paths.events_of(rank), rank)
join()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
    (paths.files / "back").touch()
while not (paths.files / "back").exists():
    time.sleep(0.05)
time.sleep(1.0)  # so that both give a sign of life
writer.close()
finish()
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _joined(*ranks: int) -> tuple[Clock, Silence]:
    """These workers have begun, and are listened to."""
    clock = Clock()
    silence = Silence(clock)
    for rank in ranks:
        silence.take(joined(rank))
    return clock, silence


def test_workers_that_do_not_join_are_named_until_they_do() -> None:
    clock = Clock()
    silence = Silence(clock, awaited=[0, 1])
    silence.take(joined())
    told = []
    for clock.now in (FIRST_WORD - 1, FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + EACH_WORD):
        silence.take(Alive(rank=0))
        told.append([text.split(" for ")[1] for text in silence.news()])
    assert told == [[], ["worker 1 to start training"], [], ["worker 1 to start training"]]
    silence.take(joined(1))
    clock.now += LIMIT / 2 + EACH_WORD
    assert not [text for text in silence.news() if "to start" in text]


def test_a_silence_is_told_once_and_so_is_its_end() -> None:
    clock, silence = _joined(0)
    told = []
    for clock.now in (LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2):
        told.append(len(list(silence.news())))
    assert told == [0, 1, 0, 0]
    clock.now = 20.0
    silence.take(Alive(rank=0))
    assert list(silence.news()) == ["worker 0 on here responds again after 20 s"]
    clock.now += LIMIT - 1
    assert list(silence.news()) == []
    clock.now += 1
    assert len(list(silence.news())) == 1, "the next silence is told as soon as the first"


def test_what_nobody_listened_to_is_no_silence_and_no_end_of_one() -> None:
    clock, silence = _joined(0, 1)
    clock.now = LIMIT
    silence.take(Alive(rank=0))
    assert [text[:8] for text in silence.news()] == ["worker 1"]
    told = []
    for _ in range(3):  # a crowded computer: it looks for 5 s, and not for 5 s
        clock.now += 5.0
        silence.slept(5.0)
        told.append([text[:8] for text in silence.news()])
        clock.now += 5.0
        told.append([text[:8] for text in silence.news()])
    assert told == [[], [], [], [], [], ["worker 0"]], "15 s of silence, and worker 1 is silent yet"


def test_what_one_worker_needs_does_not_hide_the_silence_of_another() -> None:
    clock, silence = _joined(0, 1)
    for clock.now in (LIMIT, 100.0):
        silence.take(Alive(rank=1))
        list(silence.news())
    silence.take(Alive(rank=0))
    assert [text[:8] for text in silence.news()] == ["worker 0"], "it responds again"
    clock.now += LIMIT
    assert [text[:8] for text in silence.news()] == ["worker 0", "worker 1"]


def test_a_machine_that_is_away_does_not_respond_again() -> None:
    clock, silence = _joined(0)
    clock.now = LIMIT + 1
    assert len(list(silence.news())) == 1
    silence.excuse([0])
    assert list(silence.news()) == []
    clock.now += LIMIT - 1
    silence.take(Alive(rank=0))
    assert list(silence.news()) == []


def test_a_standstill_is_longer_than_any_pause_of_the_run() -> None:
    clock = Clock()
    silence = Silence(clock)
    clock.now = 500.0  # the start is no pause between steps
    silence.take(joined())
    silence.take(steps())
    clock.now += STANDSTILL + 1
    assert silence.stands_still()
    silence.take(steps())
    clock.now += 1.5 * STANDSTILL
    assert not silence.stands_still(), "its steps take that long"
    silence.slept(1.5 * STANDSTILL)
    clock.now += 2 * STANDSTILL
    assert not silence.stands_still(), "this computer slept"
    clock.now += 3.0
    assert silence.stands_still()


@pytest.mark.parametrize(
    "end", [finished(), WorkerLost(time=0.0, rank=1, worker=0, machine="here", address="")]
)
def test_nobody_waits_for_a_sign_of_those_who_are_done_or_lost(
    end: silence.Finished | WorkerLost,
) -> None:
    clock, silence = _joined(0)
    silence.take(end)
    silence.take(Alive(rank=0))
    clock.now = 2 * LIMIT
    assert list(silence.news()) == []


class Waker(Recorder):
    """Lets a stopped worker go on as soon as it is told of it."""

    def __init__(self, files: Path) -> None:
        super().__init__()
        self._files = files
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)
        if "has sent nothing" in text:
            os.kill(int((self._files / "pid-1").read_text()), signal.SIGCONT)


def test_a_stopped_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_without_torch(monkeypatch)
    monkeypatch.setattr(silence, "LIMIT", 1.5)
    paths = RunPaths(tmp_path / "run").make()
    waker = Waker(paths.files)
    outcome = execute(make_job(write_script(tmp_path, STOPS), 2), paths, waker)
    assert outcome.exit_code == 0
    told = [re.sub(r"\d+ s", "N s", text) for text in waker.told]
    assert told == [
        "worker 1 on here has sent nothing for N s: it may be stopped, short of memory, or stuck; "
        "the run waits for it until it responds, or until you stop the run (Ctrl-C)",
        "worker 1 on here responds again after N s",
    ]


def test_a_rank_that_joins_again_has_notfinished(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run").make()
    relay = Relay(paths, [0], Recorder())

    def after(event: Event) -> set[int]:
        with paths.events_of(0).open("ab") as file:
            file.write(encode(event))
        relay.poll()
        return set(relay.finished)

    assert not relay.joined
    assert after(joined()) == set() and relay.joined
    assert after(finished()) == {0}
    assert after(joined()) == set()
    assert after(finished("failed")) == set()
