"""The two lines of a run that trains on several machines, from made events."""

from __future__ import annotations

import io
from collections.abc import Iterator

import msgspec
import pytest
from made_events import joined, steps
from rich.console import Console

from phalanx.cli.show.progress import PlainProgress
from phalanx.core.settings import RunSettings
from phalanx.launch.launcher import Launch
from phalanx.observe.events.event_types import Balanced, Event, Joined, Steps, WorkerLost
from phalanx.observe.speedup.speedup import Contribution, Option, WaitedFor, Worth
from phalanx.observe.speedup.speedup_lines import LiveWorth, lines
from phalanx.observe.speedup.speedup_words import advise

PACES = (0.1, 0.1, 0.4)


def stepped(rank: int, first: int, busy: float, seconds: float, clock: float) -> Steps:
    """Four steps; each machine's clock began at another moment."""
    began = [clock + (first + i) * seconds for i in range(4)]
    times = {"compute": busy, "wait": seconds - busy - 0.01, "reduce": 0.01}
    return steps(rank, 4, first=first, began=began, samples=40, loss=0.5, **times)


def story(paces: tuple[float, ...] = PACES, batches: int = 12) -> Iterator[Event]:
    for rank in range(len(paces)):
        yield joined(rank, workers=len(paces), machine=f"m{rank + 1}")
    for batch in range(batches):
        for rank, busy in enumerate(paces):
            yield stepped(rank, 4 * batch, busy, max(paces) + 0.01, clock=1e6 * rank)


def said(live: LiveWorth, events: Iterator[Event]) -> list[str]:
    return [line for event in events for line in live.take(event)]


def test_two_lines_once_whatever_the_machines_clocks_say() -> None:
    first, second = said(LiveWorth("allreduce", balance=False), story())
    assert first == (
        "worth it? m1 98 samples/s (33 %), m2 98 (33 %), m3 98 (33 %); "
        "m1 and m2 wait 73 % of the time for m3"
    )
    assert second.startswith("m3 is 4.0 times slower than the others and they wait 73 % of the")
    assert "leave it out (--machines m1,m2: about 2.6 times faster)" in second
    assert "or balance it (without shares=equal: about " in second


def test_nothing_before_the_first_steps_are_over_nor_for_one_worker() -> None:
    assert not said(LiveWorth("allreduce", balance=False), story(batches=2))
    assert not said(LiveWorth("allreduce", balance=False), story((0.4,)))


def test_a_machine_that_was_lost_is_not_waited_for() -> None:
    """Neither for its first word, nor for its next steps: what is said is about who is left."""
    live = LiveWorth("async", balance=False)
    events = [e for e in story((0.4, 0.4, 0.4)) if e.rank != 2]
    half = len(events) // 2
    gone = [
        WorkerLost(time=1e6 * rank, rank=rank, worker=2, machine="m3", address="192.0.2.3")
        for rank in (0, 1)
    ]
    assert not said(live, iter(events))
    live = LiveWorth("async", balance=False)
    first, second = said(live, iter([*events[:half], *gone, *events[half:]]))
    assert first == (
        "worth it? m1 98 samples/s (50 %), m2 98 (50 %), m3 0 until it was lost; no waiting"
    )
    assert second.startswith("m3 was lost; both machines that are left help: ")


def test_shares_that_have_just_changed_are_waited_for() -> None:
    live = LiveWorth("allreduce", balance=True)
    change = Balanced(time=30.0 * 0.41, rank=0, epoch=0, shares=[0.44, 0.44, 0.12])
    early = [event for event in story(batches=4) if isinstance(event, Joined) or event.first < 4]
    assert not said(live, iter([*early, change]))
    middle = [e for e in story() if isinstance(e, Steps) and 4 <= e.first < 36]
    assert not said(live, iter(middle))
    rest = [e for e in story(batches=16) if isinstance(e, Steps) and e.first >= 36]
    assert len(said(live, iter(rest))) == 2


def test_of_many_machines_the_few_that_matter_are_named() -> None:
    rates = {f"m{i}": 100.0 for i in range(1, 17)} | {"m7": 5.0, "m12": 400.0, "m3": 60.0}
    whole = sum(rates.values())
    told = Worth(
        machines={n: Contribution(samples_per_second=r, share=r / whole) for n, r in rates.items()},
        samples_per_second=whole,
        waiting=WaitedFor(name="m5", share=0.4, slower=1.1),
        predicted=[],
    )
    (line,) = lines(told)
    assert line.startswith("worth it? m12 400 samples/s (")
    assert all(f"{name} " in line for name in ("m3", "m5", "m7")) and "9 others together" in line
    fewer = Option(
        kind="fewer", machines=["m12", "m1"], samples_per_second=1.0, times=2.0, low=1.8, high=2.1
    )
    advice = advise(msgspec.structs.replace(told, predicted=[fewer]))
    assert "keep only m12 and m1 (--machines m12,m1: about 2.0 times faster)" in advice


@pytest.mark.parametrize("worth", [True, False])
def test_the_display_says_them_where_it_is_asked_to(worth: bool) -> None:
    text = io.StringIO()
    console = Console(file=text, width=400)
    display = PlainProgress(console, console, worth=worth)
    settings = RunSettings(strategy="allreduce", balance="off")
    display.started(
        Launch(
            run="r",
            command=[],
            script="s.py",
            arguments=[],
            launcher="local",
            settings=settings,
            started_wall=0.0,
            versions={},
            workers=[],
        )
    )
    for event in story():
        display.event(event)
    found = [line for line in text.getvalue().splitlines() if "m3" in line]
    assert len(found) == (2 if worth else 0)
