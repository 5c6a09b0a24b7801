"""TFRecord files: what is written is read, other writers' records too, and damage is refused."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.data.blocks import example_wire, tfrecord
from phalanx.data.blocks.block import Columns
from phalanx.data.blocks.example_proto import message, parse
from phalanx.data.blocks.tfrecord import TFRecordReader, masked_crc
from phalanx.data.blocks.tfrecord_writer import TFRecordWriter, write_tfrecord

ROWS = 20


def _columns(rows: int = ROWS) -> Columns:
    random = np.random.default_rng(3)
    wide = random.integers(-(2**62), 2**62, (rows, 3))
    return {
        "image": torch.from_numpy(random.random((rows, 5), np.float32)),
        "weight": torch.from_numpy(random.random(rows, np.float32)),
        "label": torch.from_numpy(random.integers(0, 1000, rows)),
        "wide": torch.from_numpy(wide),
        "file": [random.bytes(int(size)) for size in random.integers(0, 300, rows)],
    }


def _framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    crcs = [struct.pack("<I", masked_crc(part)) for part in (length, data)]
    return length + crcs[0] + data + crcs[1]


def _example(**lists: list[Any]) -> Any:
    example = message()()
    kinds = {float: "float_list", int: "int64_list", bytes: "bytes_list"}
    for name, values in lists.items():
        getattr(example.features.feature[name], kinds[type(values[0])]).value.extend(values)
    return example


def _write(path: Path, *records: Any) -> str:
    raw = (one if isinstance(one, bytes) else one.SerializeToString() for one in records)
    path.write_bytes(b"".join(map(_framed, raw)))
    return str(path)


def _read(source: str, columns: list[str] | None = None, **options: Any) -> Columns:
    reader = TFRecordReader([source], columns, **options)
    parts = [reader.read(block) for block in reader.blocks]
    assert [block.rows for block in reader.blocks] == [len(next(iter(p.values()))) for p in parts]
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    return torch.cat(parts)


def _assert_same(found: Columns, wanted: Columns) -> None:
    assert set(found) == set(wanted)
    for name, column in wanted.items():
        if isinstance(column, list):
            assert found[name] == column
        else:
            torch.testing.assert_close(found[name], column, rtol=0, atol=0)


def _bytes_field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data


def _entry(name: str, feature: bytes) -> bytes:
    return _bytes_field(1, _bytes_field(1, name.encode()) + _bytes_field(2, feature))


@pytest.mark.parametrize("options", [{}, {"block_rows": 7}, {"block_bytes": 300}])
def test_what_is_written_is_read(tmp_path: Path, options: dict[str, int]) -> None:
    path = tmp_path / "rows.tfrecord"
    write_tfrecord(path, _columns())
    _assert_same(_read(str(path), **options), _columns())
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_usual_records_are_not_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "rows.tfrecord")
    write_tfrecord(path, _columns())
    monkeypatch.setattr(example_wire, "parse", None)
    _assert_same(_read(path), _columns())


def test_blocks_have_at_most_so_many_rows_and_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.tfrecord")
    write_tfrecord(path, {"x": torch.rand(100, 10), "y": torch.zeros(100, dtype=torch.int64)})
    reader = TFRecordReader([path, path], block_rows=30)
    assert [block.rows for block in reader.blocks] == [30, 30, 30, 10] * 2
    assert [block.number for block in reader.blocks] == [0, 1, 2, 3] * 2
    record = Path(path).stat().st_size // 100
    by_bytes = TFRecordReader([path], block_bytes=10 * record)
    assert [block.rows for block in by_bytes.blocks] == [10] * 10


def test_columns_choose_among_the_features(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.tfrecord")
    write_tfrecord(path, _columns())
    wanted = _columns()
    _assert_same(_read(path, ["label", "file"]), {n: wanted[n] for n in ("label", "file")})
    with pytest.raises(InputError, match="has no feature 'labels'") as caught:
        TFRecordReader([path], ["labels"])
    assert "image" in caught.value.remedy


def test_appending_is_like_writing_at_once(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.tfrecord", tmp_path / "parts.tfrecord"
    columns = _columns()
    write_tfrecord(whole, columns)
    with parts.open("wb") as file:
        writer = TFRecordWriter(file)
        for rows in (slice(0, 1), slice(1, 15), slice(15, 15), slice(15, ROWS)):
            writer.write({name: column[rows] for name, column in columns.items()})
    assert parts.read_bytes() == whole.read_bytes()


def test_other_types_become_those_of_the_format(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.tfrecord")
    given = {
        "half": torch.tensor([[0.5], [1.5]], dtype=torch.float16),
        "double": torch.tensor([0.5, 1.5], dtype=torch.float64),
        "pixels": torch.arange(8, dtype=torch.uint8).reshape(2, 2, 2),
        "flag": torch.tensor([True, False]),
        "text": ["ä", ""],
    }
    write_tfrecord(path, given)
    wanted = {
        "half": torch.tensor([0.5, 1.5]),
        "double": torch.tensor([0.5, 1.5]),
        "pixels": torch.arange(8).reshape(2, 4),
        "flag": torch.tensor([1, 0]),
        "text": ["ä".encode(), b""],
    }
    _assert_same(_read(path), wanted)


def test_a_file_that_failed_has_no_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.tfrecord"
    for columns in ({"x": torch.zeros(2, dtype=torch.complex64)}, {"x": [b"a", "a"]}):
        with pytest.raises(InputError):
            write_tfrecord(path, columns)
    assert list(tmp_path.iterdir()) == []
    writer = TFRecordWriter(io.BytesIO())
    writer.write({"x": torch.zeros(2)})
    with pytest.raises(InputError, match="changed from"):
        writer.write({"x": [b"a"]})


def test_records_in_every_form_that_protobuf_allows(tmp_path: Path) -> None:
    floats, y = np.array([1.5, -2.5], "<f4").tobytes(), _entry("y", b"\x1a\x03\x0a\x01\x05")
    unpacked = b"\x0d" + floats[:4] + b"\x0d" + floats[4:]
    split = _bytes_field(1, floats[:4]) + _bytes_field(1, floats[4:])
    mixed = _bytes_field(1, floats[:4]) + b"\x0d" + floats[4:]
    forms = [_entry("x", _bytes_field(2, form)) for form in (unpacked, split, mixed)]
    value_first = _bytes_field(2, _bytes_field(2, _bytes_field(1, floats)))
    forms.append(_bytes_field(1, value_first + _bytes_field(1, b"x")))
    usual = _entry("x", _bytes_field(2, _bytes_field(1, floats)))
    other = _entry("x", _bytes_field(2, _bytes_field(1, bytes(8))))
    records = [_bytes_field(1, usual + y)]
    records += [_bytes_field(1, form + y) for form in forms]
    records += [_bytes_field(1, y + usual)]  # in another order
    records += [_bytes_field(1, other + y + usual)]  # twice: the last counts
    records += [_bytes_field(1, usual) + _bytes_field(1, y)]  # two messages, merged
    records += [_bytes_field(1, usual + _entry("z", b"") + y)]  # one more
    records += [_bytes_field(1, usual + _entry("y", b"\x1a\x02\x08\x05"))]
    found = _read(_write(tmp_path / "a.tfrecord", *records), ["x", "y"])
    wanted = {"x": [[1.5, -2.5]] * len(records), "y": [5] * len(records)}
    assert {name: column.tolist() for name, column in found.items()} == wanted


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (_example(x=[1.0]), "no feature 'y'"),
        (_example(x=[1.0], y=[1, 2]), "'y' has 2 values, in the first record 1"),
        (_example(x=[1.0, 2.0], y=[1]), "'x' has 2 values, in the first record 1"),
        (_example(x=[1], y=[1]), "'x' holds integers, in the first record floats"),
        (_bytes_field(1, _entry("x", b"") + _entry("y", b"")), "'x' has 0 values"),
        (b"", "no feature 'x'"),
        (b"\x0a\x05\x01", "not a tf.train.Example"),
    ],
)
def test_a_record_unlike_the_first_is_named(tmp_path: Path, record: Any, words: str) -> None:
    good = _example(x=[1.0], y=[1])
    path = _write(tmp_path / "a.tfrecord", *[good] * 5, record, good)
    reader = TFRecordReader([path], block_rows=4)
    with pytest.raises(InputError) as caught:
        reader.read(reader.blocks[1])
    assert caught.value.cause.startswith(f"cannot read record 6 of {path}: ")
    assert words in caught.value.cause


def test_a_first_record_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    for record, words in (
        (_example(), "has no features"),
        (_bytes_field(1, _entry("x", b"")), "has no values"),
        (_example(x=[b"a", b"b"]), "more than one byte string"),
        (b"\xff", "not a tf.train.Example"),
    ):
        with pytest.raises(InputError, match=words):
            TFRecordReader([_write(path, record)])


def test_files_without_records_are_left_out_unless_all_are(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty.tfrecord", tmp_path / "full.tfrecord"
    empty.write_bytes(b"")
    write_tfrecord(full, {"x": torch.zeros(2)})
    assert len(TFRecordReader([str(empty), str(full)]).blocks) == 1
    with pytest.raises(InputError, match="no records"):
        TFRecordReader([str(empty)])


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "rows.tfrecord"
    write_tfrecord(path, {"x": torch.rand(4, 8)})
    return path


def _cause(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        _read(str(path))
    assert str(path) in caught.value.cause
    return caught.value.cause


def test_damage_names_the_byte(whole: Path) -> None:
    data = whole.read_bytes()
    record = len(data) // 4
    whole.write_bytes(data[:-3])
    assert f"byte {3 * record}: the record should have" in _cause(whole)
    whole.write_bytes(data[: record + 9])
    assert f"byte {record}: the file ends inside a record" in _cause(whole)
    flipped = bytearray(data)
    flipped[2 * record + 30] ^= 1
    whole.write_bytes(flipped)
    assert f"byte {2 * record}: the checksum of the record's data" in _cause(whole)
    flipped = bytearray(data)
    flipped[record] ^= 1
    whole.write_bytes(flipped)
    assert f"byte {record}: the checksum of the record's length" in _cause(whole)


def test_a_huge_length_is_refused_before_anything_is_read(whole: Path) -> None:
    length = struct.pack("<Q", 2**60)
    header = length + struct.pack("<I", masked_crc(length))
    whole.write_bytes(whole.read_bytes() + header + bytes(100))
    assert "the record should have 1,152,921,504,606,846,976 bytes, but 96 are left" in _cause(
        whole
    )


def _in_members(data: bytes) -> bytes:
    """As ``cat a.gz b.gz`` makes it."""
    return gzip.compress(data[:100]) + gzip.compress(data[100:])


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, _in_members])
def test_a_compressed_file_is_a_block(whole: Path, pack: Callable[[bytes], bytes]) -> None:
    plain = _read(str(whole))
    packed = whole.with_name("packed.tfrecord")
    packed.write_bytes(pack(whole.read_bytes()))
    reader = TFRecordReader([str(packed), str(whole)], block_rows=2)
    rows = [block.rows for block in reader.blocks]
    assert rows == [4, 2, 2]
    found = reader.read(reader.blocks[0])
    assert torch.equal(found["x"], plain["x"])
    packed.write_bytes(packed.read_bytes()[:-9])
    assert f"cannot decompress {packed}" in _cause(packed)
    packed.write_bytes(pack(whole.read_bytes()[:-1]))
    assert "the file ends inside a record" in _cause(packed) or "are left" in _cause(packed)


def test_a_plain_file_that_begins_as_a_compressed_one(tmp_path: Path) -> None:
    """Its first record has as many bytes as the first two of gzip say."""
    size = int.from_bytes(tfrecord.GZIP, "little")
    record = _example(x=[b"x" * size]).SerializeToString()
    record = _example(x=[b"x" * (2 * size - len(record))])
    source = _write(tmp_path / "a.tfrecord", record, record)
    assert Path(source).read_bytes().startswith(tfrecord.GZIP)
    assert len(_read(source)["x"]) == 2


def test_a_file_that_changes_after_it_was_indexed_is_refused(whole: Path) -> None:
    reader = TFRecordReader([str(whole)])
    data = whole.read_bytes()
    for changed in (data[:-1], bytes(len(data)), _framed(bytes(len(data) - 16))):
        whole.write_bytes(changed)
        with pytest.raises(InputError, match=r"rows\.tfrecord"):
            reader.read(reader.blocks[0])


def test_files_elsewhere_are_indexed_by_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(tfrecord, "SCAN_BYTES", 700)  # some records are longer, some shorter
    path = tmp_path / "rows.tfrecord"
    columns = _columns()
    columns["file"] = [value * (1 + row % 5) for row, value in enumerate(columns["file"])]
    write_tfrecord(path, columns)
    fsspec.filesystem("memory").pipe_file(f"/{tmp_path.name}/a", path.read_bytes())
    _assert_same(_read(f"memory://{tmp_path.name}/a", block_rows=6), columns)


def _rows(columns: Columns) -> list[tuple[Any, ...]]:
    names = sorted(columns)
    ready = [c if isinstance(c, list) else c.numpy().tolist() for c in map(columns.get, names)]
    return list(zip(*ready, strict=True))


def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        way = draw(st.sampled_from(["flip", "set", "cut", "insert", "drop", "zero"]))
        some = draw(st.binary(min_size=1, max_size=9))
        if way == "flip":
            data = (
                data[:at] + bytes((data[at] ^ 1 << some[0] % 8,) if data else ()) + data[at + 1 :]
            )
        elif way == "set":
            data = data[:at] + some + data[at + len(some) :]
        elif way == "cut":
            data = data[:at]
        elif way == "insert":
            data = data[:at] + some + data[at:]
        elif way == "drop":
            data = data[:at] + data[at + len(some) :]
        else:
            data = data[:at] + bytes(len(some)) + data[at + len(some) :]
    return data


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.data())
def test_damaged_files_give_their_rows_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "rows.tfrecord"
    columns = {name: column[:5] for name, column in _columns().items()}
    write_tfrecord(path, columns)
    path.write_bytes(data.draw(st.composite(_mutated)(path.read_bytes())))
    try:
        found = _rows(_read(str(path), block_rows=2))
    except InputError as error:
        assert str(path) in error.cause
    else:  # a file that is cut after a record is a whole file with fewer
        assert found == _rows(columns)[: len(found)]


@FUZZ
@given(st.data())
def test_odd_records_are_read_as_protobuf_reads_them(tmp_path: Path, data: st.DataObject) -> None:
    good = _example(x=[1.0, 2.0], y=[300], z=[b"some"]).SerializeToString(deterministic=True)
    odd = data.draw(st.composite(_mutated)(good))
    path = _write(tmp_path / "rows.tfrecord", good, odd, good)
    try:
        found = _rows(_read(path, ["x", "y", "z"]))
    except InputError as error:
        assert f"cannot read record 2 of {path}: " in error.cause
        return
    try:
        lists = parse(odd)
    except ValueError:
        return  # in a feature that is not among the columns
    x, y, z = (list(lists[name][1]) for name in "xyz")
    assert repr(found[1]) == repr((x, y[0], z[0]))
    assert found[0] == found[2] == ([1.0, 2.0], 300, b"some")
