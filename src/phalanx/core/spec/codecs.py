"""Codecs by name: how a gradient is made smaller on the wire (``allreduce+int8``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from phalanx.core.errors import InputError
from phalanx.core.registry import Registry, did_you_mean, load_plugins
from phalanx.core.spec.keys import Key, Value, label, read_options

CODECS = Registry(
    "codec",
    {
        "fp16": "phalanx.sync.codec.half:Float16",
        "bf16": "phalanx.sync.codec.half:BFloat16",
        "int8": "phalanx.sync.codec.quantised:Int8",
        "int4": "phalanx.sync.codec.quantised:Int4",
        "topk": "phalanx.sync.codec.sparse:TopK",
        "threshold": "phalanx.sync.codec.sparse:Threshold",
        "powersgd": "phalanx.sync.codec.powersgd:PowerSGD",
    },
)


@dataclass(frozen=True)
class CodecTraits:
    summary: str
    keys: Mapping[str, Key] = field(default_factory=lambda: MappingProxyType({}))
    feedback: bool = False
    """Whether values left out of one message are added to the next one."""


_BLOCK = {"block": Key(int, 2, 1 << 20, summary="values per scale (256)")}
_TRAITS: dict[str, CodecTraits] = {
    "fp16": CodecTraits("half precision: half the bytes"),
    "bf16": CodecTraits("bfloat16: half the bytes, float32's range"),
    "int8": CodecTraits("8 bits with a scale per block, rounded at random: a quarter", _BLOCK),
    "int4": CodecTraits("4 bits with a scale per block, rounded at random: an eighth", _BLOCK),
    "topk": CodecTraits(
        "only the largest values; the rest is added to the next gradient",
        {"ratio": Key(float, 1e-6, 1.0, summary="share of values that are sent (0.01)")},
        feedback=True,
    ),
    "threshold": CodecTraits(
        "only values beyond a threshold; the rest is added to the next gradient",
        {"value": Key(float, 0.0, summary="smallest magnitude that is sent (0.001)")},
        feedback=True,
    ),
    "powersgd": CodecTraits(
        "each matrix as a product of two thin ones",
        {"rank": Key(int, 1, 1024, summary="width of the thin matrices (4)")},
        feedback=True,
    ),
}


def register_codec(name: str, target: str, traits: CodecTraits) -> None:
    """Make ``name`` a codec whose class is ``target`` (``"module:Class"``)."""
    CODECS.add(name, target)
    _TRAITS[name] = traits


def known_codecs() -> dict[str, CodecTraits]:
    load_plugins()
    return dict(_TRAITS)


@dataclass(frozen=True)
class CodecSpec:
    name: str
    options: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def traits(self) -> CodecTraits:
        return known_codecs()[self.name]

    @property
    def label(self) -> str:
        return label(self.name, self.options)


def parse_codec(text: str) -> CodecSpec:
    if any(part.partition(":")[0] in known_codecs() for part in text.split("+")[1:]):
        raise InputError(f"'{text}' names more than one codec", "Give at most one codec per phase.")
    name, *options = text.split(":")
    if name not in known_codecs():
        raise InputError(f"unknown codec '{name}'", did_you_mean(name, known_codecs()))
    return CodecSpec(name, MappingProxyType(read_options(name, known_codecs()[name].keys, options)))
