"""Which number format to compute in: timed, not believed.

bfloat16 here means autocast with float32 weights and, for images, channels_last: measured
together, because one without the other often does not pay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.data.prefetch import move
from phalanx.data.reader import as_reader
from phalanx.train.api.model_calls import Forward
from phalanx.train.loop.passes import formatted

Trial = Callable[[str], None]
_CPU_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")


def supports_bfloat16(device: torch.device) -> bool:
    """Whether the processor itself computes in bfloat16 (emulation is never faster)."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    line = next((n for n in text.splitlines() if n.lower().startswith(("flags", "features"))), "")
    return any(flag in line.split() for flag in _CPU_FLAGS)


def choose(asked: str, device: torch.device, trial: Trial | None = None) -> tuple[str, str | None]:
    """The precision to use, and a note on why when it was not simply asked for."""
    if asked != "auto":
        return asked, None
    if not supports_bfloat16(device):
        return "float32", "precision: float32 (this processor has no bfloat16 arithmetic)"
    if trial is None:
        return "bfloat16", "precision: bfloat16 (the processor supports it; not measured)"
    seconds = {name: _time(trial, name) for name in ("float32", "bfloat16")}
    best = min(seconds, key=lambda name: seconds[name])
    figures = ", ".join(f"{name} {t * 1e3:.1f} ms" for name, t in seconds.items())
    return best, f"precision: {best} (measured time of a step: {figures})"


def _time(trial: Trial, name: str, rounds: int = 3) -> float:
    trial(name)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        trial(name)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def trial_step(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], source: Any, batch: int, forward: Forward
) -> Trial:
    """One forward and backward pass in a given precision that leaves no trace."""

    def attempt(precision: str) -> None:
        device = next(model.parameters()).device
        reader = as_reader(source)
        data = move(reader.fetch(torch.arange(min(batch, len(reader))), 0), device)
        last = precision == "bfloat16"
        form = torch.channels_last if last else torch.contiguous_format
        model.to(memory_format=form)  # type: ignore[call-overload]
        data = formatted(data, last)
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices), autocast(precision, device):
            loss(*forward(model, data)).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        model.zero_grad(set_to_none=True)

    return attempt
