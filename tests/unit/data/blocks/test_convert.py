"""From one format to another and back: the same rows, or one line and no file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx.core.errors import InputError
from phalanx.data.blocks import convert as module
from phalanx.data.blocks.block import Columns
from phalanx.data.blocks.convert import convert
from phalanx.data.blocks.read import open_blocks

pytest.importorskip("pyarrow")
ROWS = 25


def _convert(source: Path, target: Path) -> int:
    return convert(str(source), target, report=lambda done, total: None)


def _read(path: Path) -> Columns:
    reader = open_blocks(str(path))
    parts = [reader.read(block) for block in reader.blocks]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    numbers = np.arange(ROWS)
    image = np.random.default_rng(1).random((ROWS, 4), np.float32)
    np.savez(tmp_path / "rows.npz", label=numbers, image=image)
    return tmp_path / "rows.npz"


def test_every_format_keeps_the_rows(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 10)
    source = arrays
    for name in ("a.parquet", "b.arrow", "c.tfrecord", "d.parquet"):
        assert _convert(source, tmp_path / name) == ROWS
        source = tmp_path / name
        found = _read(source)
        assert found["label"].tolist() == list(range(ROWS))
        assert torch.equal(found["image"], torch.from_numpy(np.load(arrays)["image"]))
    assert [block.rows for block in open_blocks(str(tmp_path / "a.parquet")).blocks] == [10, 10, 5]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.tfrecord"])
def test_what_cannot_be_written_leaves_no_file(arrays: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot write"):
        _convert(arrays, tmp_path / "none" / name)
    for number, label in enumerate((np.arange(3), np.arange(3) + 0.5)):
        np.savez(tmp_path / f"{number}.npz", label=label)
        _convert(tmp_path / f"{number}.npz", tmp_path / f"{number}.parquet")
    with pytest.raises(InputError, match=r"cannot all be written|changed from"):
        _convert(tmp_path / "[01].parquet", tmp_path / name)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "a."))]


def test_csv_is_read_and_not_written(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("x,y\n1,0.5\n2,0.25\n")
    assert convert(str(source), tmp_path / "a.parquet", report=lambda *_: None) == 2
    found = open_blocks(str(tmp_path / "a.parquet"))
    assert found.read(found.blocks[0])["y"].tolist() == [0.5, 0.25]
    with pytest.raises(InputError, match="CSV files are read, but not written"):
        convert(str(tmp_path / "a.parquet"), tmp_path / "b.csv", report=lambda *_: None)
