"""Files of a run's folder that are far too long, and a checkpoint that grows when it is read."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from cli_support import Shell
from made_checkpoints import write_checkpoint
from made_runs import write_run

from phalanx.core.errors import InputError
from phalanx.core.files import LONGEST_LINE, TooLarge, read_bounded, read_lines
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.machines.remote_files import FileDownload
from phalanx.launch.run.failure import told_by
from phalanx.observe.events.emit import MOST_ROWS, EventWriter
from phalanx.observe.events.event_types import decode
from phalanx.observe.summary.summary import summarise
from phalanx.pool.document import read_document
from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest, read_manifest

FORTY = 40 << 30
ROOM = 4 << 30


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """A reader that takes all of it fails here, and does not take the machine along."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sparse(path: Path, size: int = FORTY) -> None:
    """It takes no space on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("name", ["summary.json", "plan.json", "launch.json", "study.json"])
def test_a_record_of_forty_gigabytes_is_a_clear_line(shell: Shell, name: str) -> None:
    paths = write_run(shell.runs, "bomb")
    write_run(shell.runs, "fine")
    sparse(paths.folder / name)
    answer = shell("export", "bomb")
    if name != "plan.json":  # which is not read for it
        listed = shell("runs", "--json")
        assert {r["run"]: r["status"] for r in listed.json["runs"]}["fine"] == "done"
    answer = shell("stop", "bomb") if name != "study.json" else shell("report", "bomb")
    assert answer.code == 2 and f"{name} has 42,949,672,960 bytes" in answer.err
    assert len(answer.errors) == 2


@pytest.mark.parametrize("name", ["events/rank-0.jsonl", "machines/here.jsonl"])
def test_events_without_a_line_end_are_left_out_and_that_is_said(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("phalanx.core.files.read_lines.__defaults__", (100 << 20,))
    paths = write_run(shell.runs, "bomb")
    sparse(paths.folder / name)
    summary = summarise(paths)
    said = "worker 0 wrote too many events: not all of them are counted here"
    assert (said in summary.notes) == name.startswith("events")


def test_a_line_that_is_too_long_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + b"x" * (LONGEST_LINE + 5) + b"\ntwo\nhalf")
    assert list(read_lines(path)) == [b"one\n", None, b"two\n"]
    assert list(read_lines(path, most=4)) == [b"one\n", None]
    path.write_bytes(b"one\n")
    assert list(read_lines(path, most=4)) == [b"one\n"]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5) == b"12345"
    with pytest.raises(TooLarge, match="5 bytes, but the limit is 4"):
        read_bounded(tmp_path / "file", 4)


def test_a_worker_writes_no_line_that_readers_pass_over(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "events", 0)
    writer._stop.set()  # nobody writes down what there is, for minutes
    writer._thread.join()
    for _ in range(3 * MOST_ROWS):
        writer.rows.append((0, 1.0, 1, 0.1234567, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 0.5, 0.1))
    writer.close()
    lines = list(read_lines(tmp_path / "events"))
    assert None not in lines and len(lines) == 3
    assert max(len(line or b"") for line in lines) < LONGEST_LINE // 4
    assert [decode(line or b"").first for line in lines] == [0, MOST_ROWS, 2 * MOST_ROWS]  # type: ignore[union-attr]


def test_what_a_machine_streams_in_as_events_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.launch.machines.remote_files.LARGEST_LOG", 1000)
    paths, said = RunPaths(tmp_path / "run").make(), list[str]()
    home = FileDownload(paths, [0], said.append)
    home.take("events/rank-0.jsonl", 0, b"x" * 5000)
    assert paths.events_of(0).stat().st_size == 1000 and "too large" in said[0]


def test_logs_without_a_line_end_are_shown_in_parts(shell: Shell) -> None:
    paths = write_run(shell.runs, "bomb")
    paths.log_of(0).write_bytes(b"x" * (3 << 20))
    answer = shell("logs", "bomb", "--json")
    assert answer.json["lines"] == 3


def test_a_traceback_of_forty_gigabytes_is_read_at_its_end(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run").make()
    sparse(paths.traceback_of(0))
    with paths.traceback_of(0).open("ab") as file:
        file.write(b"\nthe last word\n")
    assert told_by(0, paths)[-1] == "the last word"


def many_names(paths: RunPaths, names: int, places: int) -> None:
    """One tensor of 12 bytes under ``names`` names each in ``places`` places."""
    file = paths.checkpoints / "000001" / "manifest.json"
    manifest = read_manifest(file.parent)
    layout = manifest.optimizers[0].layouts[0]
    place = layout.places[0]
    made = [
        msgspec.structs.replace(place, names=[f"{p}.{n}" for n in range(names)])
        for p in range(places)
    ]
    changed = msgspec.structs.replace(layout, places=made)
    optimizer = msgspec.structs.replace(manifest.optimizers[0], layouts=[changed])
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, optimizers=[optimizer])))


@pytest.mark.parametrize(("names", "places"), [(2000, 1), (1, 2000)])
def test_a_checkpoint_with_many_names_for_a_tensor_is_refused(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, names: int, places: int
) -> None:
    paths = write_run(shell.runs, "bomb")
    write_checkpoint(paths, 1)
    many_names(paths, names, places)
    monkeypatch.setattr("phalanx.train.checkpoint.tensor_files.MOST_UNTIED", 40_000)
    answer = shell("export", "bomb", "--checkpoint", "1")
    assert answer.code == 2 and len(answer.errors) == 2
    assert "would take 48,000 bytes (2,000 names)" in answer.errors[0]
    assert not list(shell.folder.glob("*.safetensors")) + list(shell.folder.glob(".*.part"))


@pytest.mark.parametrize("name", ["pool.yaml", "pool.json"])
@pytest.mark.parametrize(
    "text", ["[" * 900_000, "[a," * 300_000, '{"a":' * 150_000, "[{a: " * 9000]
)
def test_a_deeply_nested_blueprint_is_refused_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr("phalanx.pool.document._compose", None)
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="nested too deeply"):
        read_document(tmp_path / name)


@pytest.mark.parametrize("text", ["- " * 450_000, "? " * 450_000])
def test_nesting_without_brackets_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pool.yaml").write_text(text)
    with pytest.raises(InputError, match="nested too deeply"):
        read_document(tmp_path / "pool.yaml")


def test_a_manifest_of_brackets_is_damaged(shell: Shell) -> None:
    paths = write_run(shell.runs, "bomb")
    write_checkpoint(paths, 1)
    manifest = paths.checkpoints / "000001" / "manifest.json"
    assert isinstance(read_manifest(manifest.parent), CheckpointManifest)
    manifest.write_text("[" * 900_000)
    assert "manifest.json is damaged" in shell("export", "bomb", "--checkpoint", "1").errors[0]
