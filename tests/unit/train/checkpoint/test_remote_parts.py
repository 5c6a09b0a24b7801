"""Parts of checkpoints that come over a connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_pairs import channel_pair
from checkpoint_making import GRACE, begin_write, newest, private_of

from phalanx.sync.connect.channel import Channel
from phalanx.train.checkpoint import remote_parts as parcels
from phalanx.train.checkpoint.tensor_files import write_tensors
from phalanx.train.checkpoint.writer import Writer


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel]]:
    with channel_pair(tls=request.param) as found:
        yield found


def _soon() -> float:
    return time.monotonic() + GRACE


def test_a_part_is_the_file_that_its_worker_would_have_written(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    tensors = private_of(1, 2, size=400_000)
    sending = threading.Thread(target=parcels.send, args=(pair[0], 7, tensors))
    sending.start()
    record = parcels.receive(pair[1], 7, tmp_path / "came", _soon())
    sending.join(GRACE)
    assert record == write_tensors(tmp_path / "written", tensors)
    assert (tmp_path / "came").read_bytes() == (tmp_path / "written").read_bytes()


def test_a_disk_that_fails_does_not_confuse_the_next_part(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    for number in (1, 2):
        parcels.send(pair[0], number, private_of(number, 1))
    with pytest.raises(OSError, match="No such file"):
        parcels.receive(pair[1], 1, tmp_path / "nowhere" / "came", _soon())
    assert parcels.receive(pair[1], 2, tmp_path / "came", _soon()).bytes


def test_what_cannot_be_made_and_who_is_gone_are_told_apart(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    parcels.send_failure(pair[0], 1)
    with pytest.raises(parcels.NoParcel, match="could not create"):
        parcels.receive(pair[1], 1, tmp_path / "came", _soon())
    with pytest.raises(parcels.NoParcel, match="in time"):
        parcels.receive(pair[1], 2, tmp_path / "came", time.monotonic() + 0.1)
    pair[0].close()
    with pytest.raises(parcels.NoParcel, match="is not reachable"):
        parcels.receive(pair[1], 3, tmp_path / "came", _soon())


def test_a_stranger_to_the_protocol_gets_nothing_written(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    pair[0].send(b"\xff\xff", b"0123456789")
    with pytest.raises(parcels.NoParcel, match="something else"):
        parcels.receive(pair[1], 1, tmp_path / "came", _soon())
    assert not list(tmp_path.iterdir())


def test_a_lost_worker_has_nothing_of_its_own(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0, 2, 99, patience=GRACE, lost=lambda: {1})
    begin_write(writer, 1, 0, 2)
    assert writer.finish(GRACE)
    assert writer.problem is None
    assert (tmp_path / "000001" / "rank-1.safetensors").exists()


def test_a_second_machine_has_each_checkpoint_whole(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    writers = [
        Writer(here, 0, 2, 2, patience=GRACE, far={1: pair[1]}, second=1),
        Writer(there, 1, 2, 2, patience=GRACE, far={0: pair[0]}, second=1),
    ]
    for number in (1, 2, 3):
        for rank, writer in enumerate(writers):
            begin_write(writer, number, rank, 2)
    assert all(writer.finish(GRACE) for writer in writers)
    assert [writer.problem for writer in writers] == [None] * 2
    assert [sorted(path.name for path in folder.iterdir()) for folder in (here, there)] == [
        ["000002", "000003"]
    ] * 2
    assert newest(there) == 3


def test_a_copy_is_whole_or_not_there_and_older_ones_stay(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    first = Writer(here, 0, 2, 1, patience=GRACE, far={1: pair[1]}, second=1)
    second = Writer(there, 1, 2, 1, patience=GRACE, far={0: pair[0]}, second=1)
    for number in (1, 2):
        begin_write(first, number, 0, 2)
        if number == 2:
            parcels.send(pair[0], 2, private_of(2, 1))
            assert pair[0].poll(GRACE)  # the copy is on its way, and its reader dies
            pair[0].close()
            break
        begin_write(second, number, 1, 2)
        assert second.finish(GRACE)
    assert first.finish(GRACE)
    assert newest(there) == 1
    assert sorted(path.name for path in there.iterdir()) == ["000001"]
    assert newest(here) == 2


def test_checkpoints_do_not_pile_up_when_the_second_machine_is_lost(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    far = {1: pair[1]}
    writer = Writer(tmp_path, 0, 2, 1, patience=GRACE, far=far, second=1, lost=lambda: {1})
    pair[0].close()
    pair[1].close()
    for number in (1, 2):
        begin_write(writer, number, 0, 2)
        assert writer.finish(GRACE)
    assert "no second copy" in writer.problem
    assert [path.name for path in tmp_path.iterdir()] == ["000002"]
