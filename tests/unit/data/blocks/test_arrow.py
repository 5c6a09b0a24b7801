"""Parquet and Arrow become tensors as they are, and say what they cannot be."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.core.errors import InputError
from phalanx.data.blocks.arrow import ArrowReader, CsvReader, ParquetReader, to_columns
from phalanx.data.blocks.block_data import BlockData
from phalanx.data.blocks.read import read
from phalanx.data.reader import TensorReader, as_reader

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 50


def table(rows: int = ROWS, first: int = 0) -> Any:
    numbers = np.arange(first, first + rows)
    lists = [[float(n), n + 0.5] for n in numbers]
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "x": pa.array(lists, pa.list_(pa.float32(), 2)),
            "free": pa.array(lists, pa.list_(pa.float64())),
            "small": pa.array(numbers % 200, pa.uint8()),
            "wide": pa.array(numbers, pa.uint32()),
            "half": pa.array(numbers.astype(np.float16)),
            "yes": pa.array(numbers % 2 == 0),
            "raw": pa.array([bytes([n % 256, 1, 2]) for n in numbers], pa.binary(3)),
        }
    )


def check(columns: dict[str, Any], rows: int = ROWS, first: int = 0) -> None:
    numbers = torch.arange(first, first + rows)
    assert torch.equal(columns["n"], numbers)
    assert torch.equal(columns["x"], torch.stack([numbers, numbers + 0.5], 1).float())
    assert torch.equal(columns["free"], torch.stack([numbers, numbers + 0.5], 1).double())
    assert columns["small"].dtype == torch.uint8 and torch.equal(columns["wide"], numbers)
    assert torch.equal(columns["half"], numbers.half())
    assert torch.equal(columns["yes"], numbers % 2 == 0)
    assert torch.equal(columns["raw"][:, 0], (numbers % 256).to(torch.uint8))


def test_every_kind_of_column() -> None:
    check(to_columns(table(), "made"))


def test_a_part_of_a_table() -> None:
    """Slices begin in the middle of Arrow's buffers."""
    check(to_columns(table().slice(7, 20), "made"), 20, 7)
    check(to_columns(pa.concat_tables([table(5), table(4, 5)]), "made"), 9)


def test_parquet(tmp_path: Path) -> None:
    for part in range(3):
        pq.write_table(table(ROWS, part * ROWS), tmp_path / f"{part}.parquet", row_group_size=20)
    (tmp_path / "_SUCCESS").write_text("")
    reader = ParquetReader([str(tmp_path / f"{part}.parquet") for part in range(3)], None)
    assert [block.rows for block in reader.blocks] == [20, 20, 10] * 3
    check(reader.read(reader.blocks[4]), 20, ROWS + 20)


@pytest.mark.parametrize("stream", [False, True])
def test_arrow(tmp_path: Path, stream: bool) -> None:
    path = str(tmp_path / "made.arrow")
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(path, table().schema) as sink:
        sink.write_table(table(), max_chunksize=20)
    reader = ArrowReader([path], ["n", "x"])
    assert [block.rows for block in reader.blocks] == [20, 20, 10]
    assert set(found := reader.read(reader.blocks[2])) == {"n", "x"}
    assert found["n"].tolist() == list(range(40, 50))


def test_read_chooses_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=20)
    whole = read(str(tmp_path), columns=("x", "n"))
    assert isinstance(whole, TensorReader) and len(whole) == ROWS
    x, n = whole.fetch(torch.tensor([3, 41]), 0)
    assert n.tolist() == [3, 41] and x[1].tolist() == [41, 41.5]
    monkeypatch.setattr("phalanx.data.blocks.read.IN_MEMORY", 0)
    parts = read(str(tmp_path))
    assert isinstance(parts, BlockData) and len(parts) == ROWS
    batch = parts.fetch(torch.tensor([3, 41, 20, 19]), 0)
    assert batch["n"].tolist() == [3, 41, 20, 19]


def test_rows_come_in_the_order_asked_for(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=7)
    data = read(str(tmp_path), columns=("n",), by="block", window=15)
    assert isinstance(data, BlockData)
    view, order = data.in_order(3, 0, 1, shuffle=True)
    found = torch.cat([view.fetch(order[at : at + 10], 0)[0] for at in range(0, ROWS, 10)])
    assert found.tolist() == order.row_numbers(np.arange(ROWS)).tolist()
    assert found.tolist() != list(range(ROWS)) == sorted(found.tolist())
    for few in (torch.tensor([3, 41, 20, 19]), torch.tensor([0, 5, 2])):
        assert view.fetch(few, 0)[0].tolist() == order.row_numbers(few.numpy()).tolist()


def test_what_has_no_tensor(tmp_path: Path) -> None:
    words = pa.table({"text": ["a", "bb", "ccc"]})
    pq.write_table(words, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"column 'text'.* is a list of str, not a tensor"):
        read(str(tmp_path))
    data = read(str(tmp_path), decode=lambda found: {"n": torch.tensor([*map(len, found["text"])])})
    assert data.fetch(torch.arange(3), 0)["n"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"n": pa.array([1, None])}, "column 'n' of .* has 1 nulls"),
        ({"x": pa.array([[1.0], [1.0, 2.0]])}, "column 'x' of .* is a list of list, not a tensor"),
    ],
)
def test_columns_that_are_refused(tmp_path: Path, made: dict[str, Any], words: str) -> None:
    pq.write_table(pa.table(made), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=words):
        read(str(tmp_path))


def test_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 is not enough PAR1")
    with pytest.raises(InputError, match=r"cannot read .*a\.parquet"):
        read(str(tmp_path / "a.parquet"))
    pq.write_table(table(), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="has no column 'label'"):
        read(str(tmp_path / "b.parquet"), columns=("x", "label"))
    with pytest.raises(InputError):
        read(str(tmp_path / "c.parquet"))
    (tmp_path / "what").write_text("")
    with pytest.raises(InputError, match="does not show its format"):
        read(str(tmp_path / "what"))


@pytest.mark.parametrize("by", ["sample", "block"])
def test_augmented_by_sample(tmp_path: Path, by: str) -> None:
    """The random numbers are those of the sample, however it is read."""
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=7)
    data = read(str(tmp_path), columns=("x", "n"), by=by)  # type: ignore[arg-type]
    reader = as_reader(data, seed=3, augment=lambda x, draws: x + draws.samples[:, None])
    x, n = reader.fetch(torch.tensor([40, 2, 9]), 0)
    assert n.tolist() == [40, 2, 9] and torch.equal(x[:, 0], 2.0 * n)
    assert data.fetch(torch.tensor([40]), 0)[0][0, 0] == 40.0  # as it was


def _read(folder: Path, **options: Any) -> BlockData:
    data = read(folder, by="block", **options)
    assert isinstance(data, BlockData)
    return data


def test_files_that_change_are_seen(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=20)
    data = _read(tmp_path)
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=20)
    with pytest.raises(InputError, match=r"a\.parquet has changed"):
        data.fetch(torch.tensor([3]), 0)


@pytest.mark.parametrize("by", ["sample", "block"])
@pytest.mark.parametrize(
    "second",
    [{"n": pa.array([1.5])}, {"n": pa.array([1]), "more": pa.array([1])}, {"m": pa.array([1])}],
)
def test_files_that_do_not_fit_together(tmp_path: Path, second: dict[str, Any], by: Any) -> None:
    pq.write_table(pa.table({"n": pa.array([1, 2])}), tmp_path / "a.parquet")
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet does not fit the blocks before it"):
        read(tmp_path, by=by).fetch(torch.tensor([0, 2]), 0)


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        (lambda _: None, "decode returned nothing"),
        (lambda _: (1,), "decode returned tuple"),
        (lambda _: {"n": torch.tensor(1)}, "decode returned 0 rows of 'n'"),
        (lambda _: {"n": torch.zeros(3)}, "decode returned 3 rows of 'n' for 50 samples"),
        (lambda _: {"m": torch.zeros(50)}, "decode returned no column 'n'"),
    ],
)
def test_what_decode_may_not_return(tmp_path: Path, decode: Any, words: str) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=words):
        _read(tmp_path, columns=("n",), decode=decode)


def test_decode_may_return_arrays_and_names_the_file_of_an_error(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    data = _read(tmp_path, decode=lambda found: {"n": found["n"].numpy() + 1})
    assert data.fetch(torch.tensor([3]), 0)["n"].tolist() == [4]
    with pytest.raises(ZeroDivisionError) as caught:
        _read(tmp_path, decode=lambda _: 1 // 0)
    assert "block 0 of" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "blocks"}, "unknown by='blocks'"),
        ({"window": 0}, "invalid window=0"),
        ({"columns": ()}, "columns= names none"),
    ],
)
def test_mistyped_options(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=words):
        read(tmp_path, **options)
    with pytest.raises(InputError, match="is given twice"):
        read([tmp_path / "a.parquet", f"{tmp_path}/*.parquet"])


def test_the_window_counts_what_decode_makes(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    data = _read(tmp_path, decode=lambda found: {"n": torch.zeros(len(found["n"]), 1 << 14)})
    assert data.window == 1024, "64 MB of 64 kB"


def test_integers_that_torch_does_not_have(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1 << 63], pa.uint64())}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"integers of 2\^63"):
        read(tmp_path)


def lines(first: int, rows: int, number: str = "{}") -> bytes:
    text = "n,x,name\n" + "".join(
        f'{i},{number.format(i)},"line {i}\nand, ""more"""\n' for i in range(first, first + rows)
    )
    return text.encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_csv(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Every row once, in order; a column has one type, though one file has only whole numbers."""
    (tmp_path / "a.csv").write_bytes(pack(lines(0, 150_000)))
    (tmp_path / "b.csv").write_bytes(pack(lines(150_000, 10, "{}.5")))
    reader = CsvReader([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], None)
    assert len(reader.blocks) > 3
    parts = [reader.read(block) for block in reader.blocks]
    assert torch.equal(torch.cat([part["n"] for part in parts]), torch.arange(150_010))
    assert {part["x"].dtype for part in parts} == {torch.float64}
    assert parts[-1]["x"][-1] == 150_009.5
    assert parts[-1]["name"][-1] == 'line 150009\nand, "more"'
    data = read(tmp_path, columns=("x", "n"))
    assert isinstance(data, TensorReader) and len(data) == 150_010


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("5.1,3.5,-1e3\n4.9,3.0,1\n", "names no columns: it has the value 5.1"),
        ("a,b\n1,2\n3\n", "cannot read"),
        ("a,a\n1,2\n", "has two columns 'a'"),
        ("c\n1\n", "has no column 'a'"),
        ("a,b\n1,2\n,3\n", "column 'a' of .* has 1 nulls"),
        ("a,b\nx,2\n", "incompatible types"),
        ("", "cannot read"),
    ],
)
def test_csv_that_cannot_be_used_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        read(tmp_path, columns=("a",))
