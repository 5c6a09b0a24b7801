"""What a rehearsal makes of gradients, and what its child leaves as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from descriptors import many_open

from phalanx.train.adopt.files import open_files
from phalanx.train.proof import rehearsal


def _seen(
    *batches: list[float], weights: tuple[float, ...] = (8.0, 3.0, 5.0, 8.0)
) -> rehearsal._Seen:
    """Of each batch (all, two parts, all again), gradients of one value."""
    return [
        [(torch.tensor([value], dtype=torch.float64), weight, False) for value in batch]
        for batch, weight in zip(batches, weights, strict=True)
    ]


@pytest.mark.parametrize(
    ("seen", "off"),
    [
        (_seen([1.0], [1.0], [1.0], [1.0]), None),
        (_seen([1.75], [1.0], [2.2], [1.75]), None),  # (3 * 1 + 5 * 2.2) / 8
        (_seen([2.0], [1.0], [2.2], [2.0]), pytest.approx(0.25 / 2.2)),
        (_seen([2.0], [1.0], [2.2], [2.1]), None),  # random
        (_seen([2.0], [], [2.2], [2.0]), None),  # not known
        (_seen([1.0] * 8, [1.0] * 3, [1.0] * 5, [1.0] * 8), pytest.approx(3.75 / 8)),
    ],
)
def test_parts_have_to_make_up_the_batch(seen: rehearsal._Seen, off: float | None) -> None:
    assert rehearsal._farthest(seen) == off


def test_losses_of_single_samples_add_up() -> None:
    seen = _seen([1.0] * 8, [1.0] * 3, [1.0] * 5, [1.0] * 8)
    assert rehearsal._farthest(rehearsal._as_sums(seen)) is None


def test_the_child_reads_open_files_at_places_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(200)))
    with path.open("rb", buffering=0) as file:
        file.seek(50)
        child = os.fork()
        if child == 0:
            open_files.open_files_anew()
            os._exit(0 if file.read(10) == bytes(range(50, 60)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert file.tell() == 50


def test_the_child_is_heard_with_more_than_1023_descriptors() -> None:
    with many_open():
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"[0.5, true]")
            os._exit(0)
        os.close(writing)
        assert rehearsal._answer_of(child, reading) == (0.5, True)
