"""Every codec on one core: GB of float32 a second, encoded and decoded, and what is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.harness import alternate, report, spread
from phalanx.core.spec.codecs import known_codecs, parse_codec
from phalanx.sync.codec.codec import Codec, Part
from phalanx.sync.codec.make import make_codec

SIDE = 2048  # a square matrix of 16 MB
BARS = {"int8": ">= 0.4"}


def main(rounds: int = 7) -> None:
    torch.set_num_threads(1)
    values = torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(1)) * 1e-3
    size = values.numel() * values.element_size()
    parts = [Part(0, values.numel(), SIDE)]
    codecs = {name: make_codec(parse_codec(name), parts, seed=1) for name in known_codecs()}
    found = alternate({name: _block(codec, values) for name, codec in codecs.items()}, rounds)
    for name, codec in codecs.items():
        speeds = spread([size / seconds / 1e9 for seconds in found[name]])
        bar = {"bar": BARS[name]} if name in BARS else {}
        ratio = codec.encode(values).nbytes / size
        report(f"{name}, encode + decode, GB/s", **bar, **speeds, bytes_ratio=round(ratio, 4))


def _block(codec: Codec, values: Tensor) -> Callable[[], float]:
    out = torch.empty_like(values)

    def block() -> float:
        began = time.perf_counter()
        codec.decode(codec.encode(values), out)
        return time.perf_counter() - began

    return block


if __name__ == "__main__":
    main()
