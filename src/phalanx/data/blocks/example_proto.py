"""``tf.train.Example`` without TensorFlow: its messages, and one record at a time.

An example is a map from a name to a list of floats, of 64-bit integers, or of bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phalanx.data.blocks.files import package

BYTES, FLOATS, INTS = "bytes_list", "float_list", "int64_list"
KINDS = (BYTES, FLOATS, INTS)
"""Kinds in the order of their field numbers in ``Feature``: 1, 2, 3."""
WORDS = {BYTES: "bytes", FLOATS: "floats", INTS: "integers"}
_OPTIONAL, _REPEATED = 1, 3
_FLOAT, _INT64, _STRING, _MESSAGE, _BYTES = 2, 3, 9, 11, 12


@dataclass(frozen=True)
class Feature:
    """What every record has under one name."""

    name: str
    kind: str
    values: int


@functools.cache
def message(*, floats_as_bytes: bool = False) -> Any:
    """The class of examples. Packed floats and bytes look the same in a file, so that a list of
    floats can be written as the bytes it already is."""
    pb2 = package("google.protobuf.descriptor_pb2", "TFRecord files")
    pools = package("google.protobuf.descriptor_pool", "TFRecord files")
    factory = package("google.protobuf.message_factory", "TFRecord files")
    file = pb2.FileDescriptorProto(name="example.proto", package="phalanx", syntax="proto3")
    values = {BYTES: _BYTES, FLOATS: _BYTES if floats_as_bytes else _FLOAT, INTS: _INT64}
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(KINDS, 1):
        inner = file.message_type.add(name=f"{kind}_message")
        inner.field.add(name="value", number=1, label=_REPEATED, type=values[kind])
        field = _refer(feature, kind, number, f"{kind}_message")
        field.oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_OPTIONAL, type=_STRING)
    _refer(entry, "value", 2, "Feature")
    _refer(features, "feature", 1, "Features.FeatureEntry").label = _REPEATED
    _refer(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("phalanx.Example"))


def _refer(owner: Any, name: str, number: int, target: str) -> Any:
    target = f".phalanx.{target}"
    return owner.field.add(
        name=name, number=number, label=_OPTIONAL, type=_MESSAGE, type_name=target
    )


def parse(record: bytes) -> dict[str, tuple[str, Any]]:
    """Reads kind and values of each feature by name. A ``ValueError`` says what is wrong."""
    decode_error = package("google.protobuf.message", "TFRecord files").DecodeError
    try:
        found = message().FromString(record)
    except (decode_error, UnicodeDecodeError) as error:
        raise ValueError("it is not a tf.train.Example") from error
    lists = {name: (one.WhichOneof("kind"), one) for name, one in found.features.feature.items()}
    return {
        name: (kind or BYTES, getattr(one, kind).value if kind else [])
        for name, (kind, one) in lists.items()
    }


def values_of(found: dict[str, tuple[str, Any]], feature: Feature) -> list[Any]:
    """The values of one feature. A ``ValueError`` says how it differs from the first record."""
    name = feature.name
    if name not in found:
        raise ValueError(f"it has no feature '{name}'")
    kind, values = found[name]
    if len(values) and kind != feature.kind:
        raise ValueError(
            f"its feature '{name}' holds {WORDS[kind]}, in the first record {WORDS[feature.kind]}"
        )
    if len(values) != feature.values:
        raise ValueError(
            f"its feature '{name}' has {len(values):,} values, in the first record "
            f"{feature.values:,}"
        )
    return list(values)


def serialize(lists: Iterable[tuple[str, str, list[Any]]]) -> bytes:
    """Encodes (name, kind, values); floats are given as one value of bytes."""
    example = message(floats_as_bytes=True)()
    for name, kind, values in lists:
        getattr(example.features.feature[name], kind).value.extend(values)
    # Deterministic, or else the order of the features differs from record to record.
    return bytes(example.SerializeToString(deterministic=True))
