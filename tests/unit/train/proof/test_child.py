from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from phalanx.train.proof import child
from phalanx.train.proof.child import Child


@pytest.fixture(autouse=True)
def _files_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker runs here, whose files would be kept apart."""
    monkeypatch.setattr(child, "keep_files_of_child_apart", lambda _: None)


def _telling(words: bytes) -> Child:
    made = Child(20.0)
    if made.id == 0:
        made.tell(words)
        os._exit(0)
    return made


def test_a_child_that_somebody_else_has_reaped() -> None:
    made = _telling(b"answer")
    assert made.id
    os.waitpid(made.id, 0)
    assert made.answer(5.0) == b"answer"
    assert made.exit_code() == 1
    made.end()


def test_a_child_goes_on_with_the_numbers_of_random() -> None:
    random.seed(3)
    made = Child(20.0)
    drawn = str(random.random()).encode()
    if made.id == 0:
        made.tell(drawn)
        os._exit(0)
    assert made.answer(5.0) == drawn
    made.end()


def test_what_a_child_that_does_not_end_has_written_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "of the child"
    folder.mkdir()
    monkeypatch.setattr(child, "files_of_child", lambda: str(folder))
    made = Child(20.0)
    if made.id == 0:
        (folder / "file").touch()
        made.tell(b"written")
        time.sleep(20)
    assert made.answer(5.0) == b"written"
    made.end()
    assert not folder.exists()
    assert made.exit_code() == -9


def test_a_child_that_fails_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise OSError

    monkeypatch.setattr(child, "keep_files_of_child_apart", fails)
    made = Child(20.0)
    assert made.id != 0
    assert made.answer(5.0) == b""
    made.end()
    assert made.exit_code() != 0


def test_a_child_reads_open_files_at_places_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(200)))
    with path.open("rb", buffering=0) as file:
        file.seek(50)
        forked = os.fork()
        if forked == 0:
            child.open_files_anew()
            os._exit(0 if file.read(10) == bytes(range(50, 60)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
        assert file.tell() == 50
