"""Lines of events and of figures: written on a full disk, read as they come."""

from __future__ import annotations

import errno
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import emit
from phalanx.observe.events.collect import EventTail, LineTail
from phalanx.observe.events.emit import EventWriter
from phalanx.observe.events.event_types import Finished, Logged, PhaseDone, decode, encode
from phalanx.observe.events.figure_lines import LONGEST, FigureLines, Told, read_line
from phalanx.observe.events.timeline import RankLog, read_ranks
from phalanx.observe.summary.summary import summarise


def phase(rank: int, name: str) -> PhaseDone:
    return PhaseDone(time=1.0, rank=rank, phase=name, seconds=0.5)


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_lines_do_not_depend_on_how_they_were_written(chunks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        tail = LineTail(path)
        seen = tail.poll()
        for chunk in chunks:
            with path.open("ab") as file:
                file.write(chunk)
            seen += tail.poll()
        text = b"".join(chunks)
        assert seen == text.split(b"\n")[:-1]
        assert seen + tail.drain() == [
            *text.split(b"\n")[:-1],
            *filter(None, [text.split(b"\n")[-1]]),
        ]
        assert tail.drain() == []


def test_events_of_all_ranks_as_they_come(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path).make()
    tail = EventTail(paths, range(2))
    assert tail.poll() == []
    line = encode(phase(1, "read"))
    paths.events_of(1).write_bytes(line[:10])
    assert tail.poll() == []
    with paths.events_of(1).open("ab") as file:
        file.write(line[10:] + b"not json\n" + b'{"type":"unheard-of"}\n')
    paths.events_of(0).write_bytes(encode(phase(0, "start")))
    assert tail.poll() == [phase(0, "start"), phase(1, "read")]
    assert tail.poll() == []
    last = Finished(time=2.0, rank=0, status="done", bytes_sent=0, peak_memory=0)
    with paths.events_of(0).open("ab") as file:
        file.write(encode(last) + line[:5])
    assert tail.drain() == [last]


def test_a_flood_of_output_is_cut_short_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (20 << 20) + b"\nlast\n")
    tail = LineTail(path)
    lines = tail.drain()
    assert lines[-1] == b"last"
    assert sum(map(len, lines)) <= 2 << 20


def test_a_line_without_end_is_told_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (5 << 20))
    tail = LineTail(path)
    parts = [part for _ in range(10) for part in tail.poll()]
    assert sum(map(len, parts)) >= 4 << 20
    assert len(tail._partial) <= 2 << 20


class SmallDisk(io.RawIOBase):
    """Takes ``space`` bytes, and then no more."""

    def __init__(self, space: int) -> None:
        self.space, self.content = space, b""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.space:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: self.space]
        self.space -= len(taken)
        self.content += taken
        return len(taken)


def _writer(tmp_path: Path, disk: SmallDisk) -> EventWriter:
    writer = EventWriter(tmp_path / "rank-0.jsonl", 0)
    writer._stop.set()  # by hand, below
    writer._file.close()
    writer._file = disk  # type: ignore[assignment]
    return writer


def _log(writer: EventWriter, epoch: int) -> None:
    writer.emit(Logged(time=0.0, rank=0, epoch=epoch, values={}))
    writer.flush()


def test_what_did_not_fit_is_written_when_there_is_space_again(tmp_path: Path) -> None:
    disk = SmallDisk(70)
    writer = _writer(tmp_path, disk)
    for epoch in range(3):
        _log(writer, epoch)
    disk.space = 1 << 20
    _log(writer, 3)
    found = [decode(line) for line in disk.content.splitlines()]
    assert [event.epoch for event in found if isinstance(event, Logged)] == [0, 1, 2, 3]


def test_no_more_than_so_much_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "MOST_UNWRITTEN", 100)
    disk = SmallDisk(20)
    writer = _writer(tmp_path, disk)
    for epoch in range(3):
        _log(writer, epoch)
    disk.space = 1 << 20
    _log(writer, 9)
    cut, *rest = [line for line in disk.content.splitlines() if line]
    assert len(cut) == 20, "cut in half, and a line of its own"
    assert [event.epoch for line in rest if isinstance(event := decode(line), Logged)] == [9]


TOLD = Told(machines=["a", "b"], workers=2, system="tf-mwms", seed=3, threads=[1, 2])


def read(folder: Path, *texts: str, status: str = "done") -> tuple[RunPaths, list[RankLog]]:
    paths = RunPaths(folder / "run").make()
    lines = FigureLines(paths, TOLD)
    with paths.log_of(0).open("a") as log:
        for text in texts:
            log.write(text)
            log.flush()
            lines.poll()
    lines.finish(status)
    return paths, read_ranks(paths)


def test_a_whole_story_line_by_line_as_it_grows(tmp_path: Path) -> None:
    _, ranks = read(
        tmp_path,
        'noise\nphalanx-figures {"parameters": 10, "batch": 4, ',
        '"workers": 2, "samples": 8, "epochs": 2, "read_seconds": 3, "prepare_seconds": 0.5}\n',
        'phalanx-figures {"epoch": 0, "seconds": 1.5, "samples": 8, "train_loss": 0.9,'
        ' "test_accuracy": 0.5, "perplexity": 3}\n',
        'phalanx-figures {"epoch": 1, "seconds": 0.5, "samples": 8, "train_loss": NaN,'
        ' "evaluate_seconds": 0.25, "checkpoint_seconds": 0.5, "gradient_norm": 2}\n',
        'phalanx-figures {"evaluate_seconds": 1, "checkpoint_seconds": 0}\n',
    )
    first, second = ranks
    assert first.joined is not None and second.joined is not None
    assert (first.joined.parameters, first.joined.machine, second.joined.machine) == (10, "a", "b")
    assert (first.plans[0].epochs, first.plans[0].batch, first.plans[0].samples) == (2, 4, 8)
    assert [(done.epoch, done.seconds, done.train_loss) for done in first.epochs] == [
        (0, 1.5, 0.9), (1, 0.5, None),
    ]  # fmt: skip
    assert first.logged[0].values == {"test_accuracy": 0.5, "perplexity": 3.0}
    assert first.phases["train"] == 2.0 and first.phases["evaluate"] == 1.25
    assert first.phases["checkpoint"] == 0.5 and first.epochs[1].gradient_norm == 2.0
    assert first.phases["read"] == 3.0 and first.phases["prepare"] == 0.5
    assert first.finished is not None and second.finished is not None and not second.epochs


def test_the_summary_of_it(tmp_path: Path) -> None:
    paths, _ = read(
        tmp_path,
        'phalanx-figures {"parameters": 10, "batch": 4, "samples": 8}\n',
        'phalanx-figures {"epoch": 0, "seconds": 4, "samples": 8, "test_loss": 0.25}\n',
    )
    paths.launch.write_text('{"system": "tf-mwms", "settings": {"strategy": "tf-mwms"}}')
    summary = summarise(paths)
    assert (summary.system, summary.strategy, summary.status) == ("tf-mwms", "tf-mwms", "done")
    assert (summary.batch, summary.workers, summary.test_loss) == (4, 2, 0.25)
    assert summary.samples_per_second == 2.0
    phases = summary.phases
    assert (phases.read, phases.prepare, phases.evaluate, phases.checkpoint) == (None,) * 4


def test_chief_and_servers_are_no_workers(tmp_path: Path) -> None:
    paths, _ = read(tmp_path, 'phalanx-figures {"epoch": 0, "seconds": 4, "samples": 8}\n')
    slots = [{"name": name, "slots": [{"rank": rank}]} for rank, name in enumerate("abcd")]
    roles = [
        {"rank": rank, "machine": name, "role": role}
        for rank, name, role in zip(range(4), "abcd", ("chief", *["worker"] * 2, "ps"), strict=True)
    ]
    paths.plan.write_text(json.dumps({"workers": 4, "machines": slots}))
    paths.launch.write_text(json.dumps({"system": "tf-ps", "workers": roles}))
    summary = summarise(paths)
    assert {one.name: one.workers for one in summary.machines} == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert [worker.rank for worker in summary.per_worker] == [1], "two logs were written"


def test_the_first_epoch_is_training_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, *[110.0] * 9])
    monkeypatch.setattr("phalanx.observe.events.figure_lines.time.monotonic", lambda: next(clock))
    paths, ranks = read(
        tmp_path,
        'phalanx-figures {"parameters": 10, "since_seconds": 6}\n'
        'phalanx-figures {"epoch": 0, "seconds": 5, "samples": 8}\n',
    )
    assert (ranks[0].phases["start"], ranks[0].phases["train"]) == (4.0, 5.0)
    assert summarise(paths).history[0]["seconds"] == 6.0


@pytest.mark.parametrize(
    "line",
    [
        b"phalanx-figures",
        b"phalanx-figures []",
        b'phalanx-figures {"epoch": 0',
        b' phalanx-figures {"epoch": 0}',
        b"phalanx-figures " + b"[" * 30_000,
        b'phalanx-figures {"a": ' + b"1" * LONGEST + b"}",
        b"phalanx-figures {" + b", ".join(b'"n%d": 1' % n for n in range(100)) + b"}",
    ],
)
def test_what_is_no_line_of_figures(line: bytes) -> None:
    assert read_line(line) is None


def test_what_is_no_number_is_left_out_and_what_is_not_finite_is_unknown() -> None:
    line = b'phalanx-figures {"a": "x", "b": true, "c": [1], "d": Infinity, "e": null, "f": 2}'
    assert read_line(line) == {"d": None, "e": None, "f": 2.0}


@given(st.binary(max_size=200))
def test_no_line_breaks_it(text: bytes) -> None:
    read_line(b"phalanx-figures " + text)
    read_line(text)


def test_a_negative_or_huge_epoch_does_not_break_the_run(tmp_path: Path) -> None:
    _, ranks = read(
        tmp_path,
        'phalanx-figures {"epoch": -3, "seconds": -1, "samples": -5}\n'
        'phalanx-figures {"epoch": 1e300, "samples": 1e300}\n'
        f'phalanx-figures {{"epoch": 0, "samples": {10**400}}}\n',
    )
    assert all(done.samples >= 0 and done.seconds >= 0 for done in ranks[0].epochs)


def test_a_link_in_place_of_the_events_is_not_followed(tmp_path: Path) -> None:
    paths, outside = RunPaths(tmp_path / "run").make(), tmp_path / "outside"
    outside.write_text("")
    paths.events_of(0).symlink_to(outside)
    FigureLines(paths, TOLD).finish("done")
    assert outside.read_text() == ""
