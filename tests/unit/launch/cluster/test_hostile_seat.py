"""What a seat answers is no path on the driver before it has passed the check of results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.cluster.seat_launcher import SeatLauncher
from phalanx.launch.cluster.seats import SeatNote, settled
from phalanx.launch.launcher import Job


class Hostile(SeatLauncher):
    """A launcher whose one seat, on a node of its own, answers as it likes."""

    cluster, check = "Test", "Check it."

    def __init__(self, paths: RunPaths, answers: dict[str, Any], node: str = "n1") -> None:
        super().__init__()
        note = SeatNote(
            rank=7, attempt=0, node=node, address="127.0.0.1", cores=1, threads=1, device="cpu"
        )
        self._paths, self._answers, self._started = paths, answers, True
        self._notes, self._shared = settled([note]), [False]
        self._homes = [self._home(paths, self._notes[0], False)]
        self.asked: list[str] = []

    def open(self, *_: Any, **__: Any) -> Job:
        raise NotImplementedError

    def _place(self, count: int, folder: str, mark: str) -> Iterator[None]:
        yield

    def _ask(self, rank: int, method: str, *given: Any) -> Any:
        self.asked.append(method)
        found = self._answers.get(method)
        return found(*given) if callable(found) else found

    def _answered(self, questions: Sequence[Any]) -> bool:
        return True

    def _answer(self, question: Any, seconds: float = 0.0) -> Any:
        return question

    def _release(self) -> None:
        pass


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "runs" / "run-1").make()


def _everything(tmp_path: Path) -> dict[str, bytes]:
    found = (path for path in tmp_path.rglob("*") if path.is_file())
    return {str(path.relative_to(tmp_path)): path.read_bytes() for path in found}


def _polled(launcher: Hostile) -> dict[int, int]:
    launcher.poll()
    launcher._last = 0.0
    return launcher.poll()


NAMES = [
    "{tmp}/evil", "../../evil", "logs/../../../evil", "files/../../../evil", "launch.json",
    "logs/rank-1.log", "evil",
]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, "files/x"])
def test_what_poll_answers_is_only_of_the_files_that_were_asked_for(
    paths: RunPaths, tmp_path: Path, name: str
) -> None:
    before = _everything(tmp_path)
    pieces = {name.format(tmp=tmp_path): b"evil", "logs/rank-0.log": b"said"}
    launcher = Hostile(paths, {"poll": lambda offsets: (None, pieces, [])})
    _polled(launcher)
    after = _everything(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} == {
        "runs/run-1/logs/rank-0.log"
    }


def test_a_seat_that_never_stops_sending_still_ends(paths: RunPaths, tmp_path: Path) -> None:
    launcher = Hostile(paths, {"poll": lambda offsets: (0, {"evil": b"evil"}, [])})
    assert _polled(launcher) == {0: 0}


@pytest.mark.parametrize("name", [*NAMES, "logs/new.log"])
def test_what_files_answers_is_checked_as_results_are(
    paths: RunPaths, tmp_path: Path, name: str
) -> None:
    before, said = _everything(tmp_path), list[str]()
    evil = name.format(tmp=tmp_path)
    answers = {"files": [[evil, 4], ["files/good", 4]], "piece": b"data"}
    launcher = Hostile(paths, answers)
    launcher.finish(said.append, lambda: False)
    after = _everything(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} == {"runs/run-1/files/good"}
    assert "these results were not fetched" in said[0] and "clean" not in launcher.asked


@pytest.mark.parametrize("link", ["files", "files/inner"])
def test_results_follow_no_link(paths: RunPaths, tmp_path: Path, link: str) -> None:
    outside, said = tmp_path / "outside", list[str]()
    outside.mkdir()
    place = paths.folder / link
    place.parent.mkdir(exist_ok=True)
    if place.is_dir():
        place.rmdir()
    place.symlink_to(outside)
    launcher = Hostile(paths, {"files": [["files/inner/x", 4]], "piece": b"evil"})
    launcher.finish(said.append, lambda: False)
    assert not list(outside.iterdir()) and said


@pytest.mark.parametrize("link", ["logs", "logs/rank-0.log"])
def test_logs_follow_no_link(paths: RunPaths, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (paths.folder / "logs").rmdir()
    (paths.folder / link).parent.mkdir(exist_ok=True)
    (paths.folder / link).symlink_to(outside if link == "logs" else outside / "rank-0.log")
    launcher = Hostile(paths, {"poll": lambda offsets: (None, {"logs/rank-0.log": b"evil"}, [])})
    with pytest.raises(MachineError, match="cannot write the files of worker 0"):
        _polled(launcher)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "answer", [None, 5, (0, {"logs/rank-0.log": 5}, []), ("x", {}, []), (None, {}), (None, {}, [5])]
)
def test_what_is_no_answer_is_a_lost_seat(paths: RunPaths, answer: Any) -> None:
    launcher = Hostile(paths, {"poll": lambda offsets: answer})
    with pytest.raises(MachineError, match="Test has lost worker 0 on n1"):
        _polled(launcher)


@pytest.mark.parametrize("files", [None, [["files/x"]], [["files/x", 4]]])
def test_what_is_no_result_is_noted(paths: RunPaths, files: Any) -> None:
    said: list[str] = []
    launcher = Hostile(paths, {"files": files, "piece": None})
    launcher.finish(said.append, lambda: False)
    assert "not all results of n1 were fetched" in said[0]
    assert not list(paths.folder.glob(".incoming-*"))


def test_a_node_says_no_path_by_its_name(paths: RunPaths, tmp_path: Path) -> None:
    launcher = Hostile(
        paths, {"poll": lambda offsets: (None, dict.fromkeys(offsets, b"x"), [])}, "../../e"
    )
    _polled(launcher)
    assert not [path for path in _everything(tmp_path) if not path.startswith("runs/run-1/")]
    assert launcher._notes[0].rank == 0


def _with_checkpoints(paths: RunPaths, names: list[str], weights: bytes) -> Hostile:
    """Its node has these checkpoints, whose manifests are those of ``b"weights"``."""
    record = {"bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    data = {"model": weights, "manifest.json": json.dumps({"files": {"model": record}}).encode()}

    def files(name: str) -> list[tuple[str, int]]:
        return [(f".leaving/{name}/{file}", len(data[file])) for file in data]

    def piece(name: str, at: int) -> bytes:
        return data[name.rpartition("/")[2]][at : at + 5]

    answers = {"poll": lambda offsets: (None, {}, names), "files": files, "piece": piece}
    return Hostile(paths, answers)


def test_a_checkpoint_comes_home_while_the_worker_runs(paths: RunPaths) -> None:
    for name in ("000001", "000002"):
        (paths.checkpoints / name).mkdir(parents=True)
    launcher = _with_checkpoints(paths, ["000002", "000003"], b"weights")
    for _ in range(100):
        assert _polled(launcher) == {}
    assert sorted(path.name for path in paths.checkpoints.iterdir()) == ["000002", "000003"]
    assert (paths.checkpoints / "000003" / "model").read_bytes() == b"weights"
    assert launcher.asked.count("files") == 1 and launcher.news() == []
    assert not list(paths.folder.glob(".incoming-*"))


@pytest.mark.parametrize(
    ("name", "weights"), [("000003", b"other w"), ("../../evil", b"weights"), ("evil", b"weights")]
)
def test_what_is_no_checkpoint_does_not_come(
    paths: RunPaths, tmp_path: Path, name: str, weights: bytes
) -> None:
    before = _everything(tmp_path)
    launcher = _with_checkpoints(paths, [name], weights)
    launcher.news()
    for _ in range(100):
        _polled(launcher)
    assert _everything(tmp_path) == before and not list(paths.checkpoints.glob("*"))
    words = "checkpoint 3 was not fetched yet: model does not match the manifest"
    assert launcher.news() == ([words] if name == "000003" else [])
