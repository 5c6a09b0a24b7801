"""What lies between two passes over the data is part of no step."""

from __future__ import annotations

from pathlib import Path

from phalanx.observe.events.emit import EventWriter
from phalanx.sync.strategy import Timing
from phalanx.train.step.stopwatch import Stopwatch


class Clock:
    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_an_evaluation_between_passes_is_part_of_no_step(tmp_path: Path) -> None:
    clock, writer = Clock(), EventWriter(tmp_path / "events", 0)
    stopwatch = Stopwatch(clock, writer)
    for _ in range(2):
        asked = stopwatch.asked()
        clock.seconds += 0.25
        stopwatch.received(asked, 4)
        clock.seconds += 1.0
        stopwatch.stepped(clock.now(), Timing())
        stopwatch.asked()  # the pass ends: there is no further batch
        clock.seconds += 60.0  # the script evaluates
    began = [row[1] for row in writer.rows]
    assert began == [0.0, 61.25]
    assert [row[3:5] for row in writer.rows] == [(0.25, 1.0), (0.25, 1.0)]
