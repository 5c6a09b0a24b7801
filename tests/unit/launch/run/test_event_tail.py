from __future__ import annotations

from pathlib import Path

from launch_support import Recorder

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.run.event_tail import Relay
from phalanx.observe.events.event_types import Event, Finished, Joined, encode


def _joined() -> Joined:
    return Joined(
        time=1.0, wall=0.0, rank=0, workers=1, machine="here", pid=1, device="cpu", threads=1,
        precision="float32", strategy="async", parameters=1, seed=0, versions={}, notes=[],
    )  # fmt: skip


def _finished(status: str = "done") -> Finished:
    return Finished(time=2.0, rank=0, status=status, bytes_sent=0, peak_memory=0)


def test_a_rank_that_joins_again_has_not_finished(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run").make()
    relay = Relay(paths, [0], Recorder())

    def after(event: Event) -> set[int]:
        with paths.events_of(0).open("ab") as file:
            file.write(encode(event))
        relay.poll()
        return set(relay.finished)

    assert not relay.joined
    assert after(_joined()) == set() and relay.joined
    assert after(_finished()) == {0}
    assert after(_joined()) == set()
    assert after(_finished("failed")) == set()
