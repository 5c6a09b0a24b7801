"""Choose the number format to compute in, by timing a step in each.

bfloat16 and float16 here mean autocast with float32 weights and, for images, channels_last:
measured together, because one without the other often does not pay. float16 scales the loss too.
tf32 means float32 tensors, whose products a GPU rounds to fewer digits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.core.settings import AUTOCASTS, PRECISIONS
from phalanx.data.prefetch import move
from phalanx.data.reader import as_reader
from phalanx.train.figures.model_calls import Forward
from phalanx.train.samples.epoch_batches import formatted
from phalanx.train.start.environment import Environment

Trial = Callable[[str], None]
_CPU_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
_TF32, _TENSOR_CORES = (8, 0), (7, 0)
"""The least compute capability of NVIDIA GPUs that have TF32, and that have tensor cores."""


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


def supports_tf32(device: torch.device) -> bool:
    return _is_nvidia(device, _TF32)


def _is_nvidia(device: torch.device, least: tuple[int, int]) -> bool:
    """Whether ``device`` is an NVIDIA GPU of at least this compute capability (AMD's differ)."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= least


def candidates(device: torch.device) -> list[str]:
    """Return float32, and what may be faster on ``device``. float16 is included only without
    bfloat16: its numbers end at 65504, and steps are skipped."""
    found = ["float32", *(["tf32"] if supports_tf32(device) else [])]
    if supports_bfloat16(device):
        return [*found, "bfloat16"]
    return [*found, *(["float16"] if _is_nvidia(device, _TENSOR_CORES) else [])]


def choose(asked: str, device: torch.device, trial: Trial | None = None) -> tuple[str, str | None]:
    """Return the precision to use, and why; no reason if the user asked for it."""
    if asked != "auto":
        return asked, None
    names = candidates(device)
    if names == ["float32"]:
        return "float32", "precision: float32 (this processor has no bfloat16 arithmetic)"
    if trial is None and "bfloat16" in names:
        return "bfloat16", "precision: bfloat16 (the processor supports it; not measured)"
    if trial is None:  # a loop that calls error.backward() itself would lose small gradients
        return "float32", (
            "precision: float32 (this GPU has no bfloat16 arithmetic; if the loop calls "
            "run.backward, --precision float16 may be faster)"
        )
    seconds = {name: _time(trial, name) for name in names}
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


def agree(environment: Environment, trial: Trial | None) -> tuple[str, str | None]:
    """Agree on a precision, which the first worker chooses for all. Collective."""
    device, arena = environment.device, environment.arena
    decides = arena is None or environment.rank == 0  # trials of all would disturb each other
    asked = environment.settings.precision
    chosen, note = choose(asked, device, trial) if decides else ("float32", None)
    able = supports_tf32(device)
    if arena is not None:
        cells = arena.region("precision", 1 + environment.workers, torch.int64)
        cells[1 + environment.rank] = int(able)
        if environment.rank == 0:
            cells[0] = PRECISIONS.index(chosen)
        arena.barrier()
        chosen, able = PRECISIONS[int(cells[0])], bool(cells[1:].any())
    # One worker with tf32 is enough: the others compute the products in float32.
    if chosen == "tf32" and not able:
        raise InputError(
            "--precision tf32 needs an NVIDIA GPU of compute capability 8.0 or more, and no "
            "worker has one",
            "Leave it out, or use --precision auto: it measures what there is.",
        )
    return chosen, note


def loss_scaler(
    precision: str, optimizers: Sequence[torch.optim.Optimizer]
) -> torch.amp.GradScaler | None:
    """Return the gradient scaler of a run in float16; ``None`` in other precisions."""
    if precision != "float16":
        return None
    if len(optimizers) != 1:
        raise InputError(
            f"--precision float16 scales the loss for one optimizer; the script has "
            f"{len(optimizers)}",
            "Use --precision bfloat16, or a GradScaler of your own: "
            "run.step(optimizer, scaler=scaler).",
        )
    if any(p.dtype == torch.float16 for g in optimizers[0].param_groups for p in g["params"]):
        raise InputError(
            "--precision float16 keeps weights in float32, and some of these are float16: their "
            "small gradients would vanish when the scale is taken off",
            "Leave out model.half().",
        )
    # On the CPU: its scale is read in every step, and from a GPU the host would wait for it.
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))  # so that it makes its tensors now, not at its first use
    return scaler


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    if precision in AUTOCASTS:
        return torch.autocast(device.type, dtype=getattr(torch, precision))
    return nullcontext()


def switch_on_tf32() -> ExitStack:
    """Allow tf32 in the whole process; closing the returned stack restores the settings."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    layers = [getattr(cudnn, name, None) for name in ("conv", "rnn")]
    back = ExitStack()
    back.callback(_switch_on(matmul, [matmul]))
    back.callback(_switch_on(cudnn, layers))
    return back


def _switch_on(owner: Any, operations: Sequence[Any]) -> Callable[[], None]:
    """Set tf32 by the older of torch's two interfaces, which sets the newer one as well. If only
    the newer one were set, torch.compile and scripts could no longer read the older."""
    before = [getattr(each, "fp32_precision", None) for each in operations]
    if None in before:  # before torch 2.9 there was only one
        was = owner.allow_tf32
        owner.allow_tf32 = True
        return lambda: setattr(owner, "allow_tf32", was)
    if set(before) == {"tf32"}:
        return lambda: None

    def put_back() -> None:
        owner.allow_tf32 = False
        for each, value in zip(operations, before, strict=True):
            each.fp32_precision = value

    owner.allow_tf32 = True
    return put_back


def trial_step(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], source: Any, batch: int, forward: Forward
) -> Trial:
    """Return a function that runs one forward and backward pass in a precision and undoes it."""

    def attempt(precision: str) -> None:
        device = next(model.parameters()).device
        reader = as_reader(source)
        data = move(reader.fetch(torch.arange(min(batch, len(reader))), 0), device)
        last = precision in AUTOCASTS
        form = torch.channels_last if last else torch.contiguous_format
        model.to(memory_format=form)  # type: ignore[call-overload]
        data = formatted(data, last)
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        devices = [device] if device.type == "cuda" else []
        rounding = switch_on_tf32() if precision == "tf32" else nullcontext()
        with rounding, torch.random.fork_rng(devices):
            with autocast(precision, device):
                error = loss(*forward(model, data))
            error.backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        model.zero_grad(set_to_none=True)

    return attempt
