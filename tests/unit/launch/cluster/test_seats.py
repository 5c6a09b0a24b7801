"""What is known of workers before and after a cluster's manager has placed them."""

from __future__ import annotations

import importlib.util
import stat
from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.cluster import node
from phalanx.launch.cluster.ray_launcher import check_ray
from phalanx.launch.cluster.seats import (
    SeatNote,
    key_file,
    read_note,
    write_note,
    write_private,
)
from phalanx.observe.events.collect import LineTail


def test_a_note_is_read_as_written_and_nothing_else_is(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    (tmp_path / "cluster").mkdir()
    note = SeatNote(
        rank=1, attempt=0, node="n1", address="10.0.0.1", cores=4, threads=2, device="cpu", code=-9
    )
    write_note(paths, note)
    assert read_note(paths, 1) == note
    assert read_note(paths, 0) is None
    (tmp_path / "cluster" / "rank-1.json").write_text("{")
    assert read_note(paths, 1) is None


def test_a_key_is_this_users_alone(tmp_path: Path) -> None:
    path = key_file(RunPaths(tmp_path))
    write_private(path, "secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        write_private(path, "another")


def test_an_address_is_configured_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_ADDRESS", "203.0.113.0/24")
    for alone in (False, None):
        with pytest.raises(InputError) as caught:
            node.own_address("n1", alone=alone)
        assert "PHALANX_ADDRESS" in caught.value.remedy


def test_a_cluster_that_is_on_loopback_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_ADDRESS", raising=False)
    assert node.own_address("127.0.0.1:40123") == "127.0.0.1"
    with pytest.raises(InputError):
        node.own_address("127.0.0.1", alone=False)
    monkeypatch.setenv("PHALANX_ADDRESS", "127.0.0.0/8")
    assert node.own_address("elsewhere:40123") == "127.0.0.1"


@pytest.mark.parametrize("place", ["::1", "[::1]:7077"])
def test_an_address_with_colons_is_not_cut(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_ADDRESS", raising=False)
    monkeypatch.setattr(node, "own_addresses", lambda: ["::1"])
    assert node.own_address(place) == "::1"


def test_without_ray_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        check_ray()
    assert (caught.value.cause, caught.value.remedy) == (
        "Ray is not installed here",
        "Run: pip install ray",
    )


def test_a_file_that_is_another_by_its_name_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text("first\nsecond\n")
    tail = LineTail(path)
    assert tail.poll() == [b"first", b"second"]
    path.rename(tmp_path / "before")
    path.write_text("third\n")
    assert tail.poll() == [b"third"]
