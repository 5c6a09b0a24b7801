from __future__ import annotations

from pathlib import Path

from launch_support import Recorder
from made_events import finished, joined

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.run.event_tail import Relay
from phalanx.observe.events.event_types import Event, encode


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
