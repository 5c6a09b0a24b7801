"""``--compile``: models run by ``torch.compile``, where that is faster.

A shape is compiled for when several batches in a row have it, for at most ``MOST_SHAPES`` shapes. A
short last batch or an evaluation runs uncompiled, so that nothing is compiled over and over.
``auto`` measures both, and keeps the faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn

from phalanx.adapters.torch_models import Mirror
from phalanx.core import words
from phalanx.core.settings import CompileMode
from phalanx.data.structure import tensors_in

Say = Callable[[str], None]
Shape = tuple[tuple[torch.Size, torch.dtype], ...]
SETTLED = 5
"""Calls in a row with one shape before it is measured or compiled."""
BLOCK = 20
"""Calls that are timed together."""
MOST_SHAPES = 3


def compile_models(
    models: Sequence[nn.Module], mode: CompileMode, device: torch.device, say: Say
) -> None:
    """Let each of ``models`` be compiled as ``mode`` says, from its next calls on."""
    for model in models:
        if isinstance(model, Mirror):
            say("--compile is for PyTorch models; Keras has model.compile(jit_compile=True)")
        elif model._compiled_call_impl is not None or hasattr(model, "_orig_mod"):
            say("--compile leaves the model as it is: the script compiles it")
        else:
            model._compiled_call_impl = Compiled(model, mode, device, say)


class Compiled:
    """Runs the calls of a model: eager at first, compiled once its batches keep one shape."""

    def __init__(self, model: nn.Module, mode: CompileMode, device: torch.device, say: Say) -> None:
        self._model, self._say = model, say
        # The uncompiled call. It is wrapped, because torch.compile skips torch's own functions.
        self._plain: Callable[..., Any] = lambda *args, **kwargs: model._call_impl(*args, **kwargs)
        fastest = "reduce-overhead" if device.type == "cuda" else "default"
        self._measures, self._mode = mode == "auto", fastest if mode == "auto" else mode
        self._fast: Callable[..., Any] | None = None
        self._compiled: list[Shape] = []
        self._shape: Shape = ()
        self._row = 0
        """Calls in a row that had the same shape."""
        self._over = False
        self._timer = _Timer(device)
        self._eager: float | None = None
        self._began: float | None = None
        self._cost = 0.0
        """Seconds of the step that compiled, which began at ``_began``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain, model = self._plain, self._model
        if self._over or not model.training or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        shape = tuple((t.shape, t.dtype) for t in tensors_in([args, kwargs]))
        self._row = self._row + 1 if shape == self._shape else 1
        self._shape = shape
        if shape in self._compiled:
            return self._run(args, kwargs)
        if self._row > SETTLED and len(self._compiled) < MOST_SHAPES:
            return self._consider(shape, args, kwargs)
        return plain(*args, **kwargs)

    def _consider(self, shape: Shape, args: Any, kwargs: Any) -> Any:
        """Compile for a shape that stays; with ``auto``, first time the uncompiled calls."""
        plain = self._plain
        if self._measures and self._eager is None:
            self._eager = self._timer.of_block()
            return plain(*args, **kwargs)
        self._began = perf_counter()
        try:
            fast = self._fast or torch.compile(self._plain, dynamic=False, mode=self._mode)
            self._fast, outputs = fast, fast(*args, **kwargs)
        except Exception as error:  # what cannot be compiled can still run as it is
            self._give_up(f"torch.compile failed ({type(error).__name__}); the model runs as it is")
            return plain(*args, **kwargs)
        self._compiled.append(shape)
        self._timer.restart()
        return outputs

    def _run(self, args: Any, kwargs: Any) -> Any:
        assert self._fast is not None
        if self._began is not None:  # includes compiling the backward pass
            self._cost, self._began = perf_counter() - self._began, None
        if self._eager is not None and self._measures:
            self._judge()
            if self._over:
                return self._plain(*args, **kwargs)
        return self._fast(*args, **kwargs)

    def _judge(self) -> None:
        compiled = self._timer.of_block()
        if compiled is None or self._eager is None:
            return
        eager, self._measures = self._eager, False
        times = f"{words.seconds(eager)} a step as it is, {words.seconds(compiled)} compiled"
        if compiled < eager:
            self._say(f"compiled the model: {times}; compiling took {words.seconds(self._cost)}")
        else:
            self._give_up(f"the model stays uncompiled: {times}")

    def _give_up(self, why: str) -> None:
        self._over, self._fast = True, None
        self._say(why)


class _Timer:
    """Measures the seconds of a call over a block of calls; the first ones are not timed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.restart()

    def restart(self) -> None:
        self._calls, self._began = -SETTLED, 0.0

    def of_block(self) -> float | None:
        """Count a call that begins; return the seconds of one call when the block is over."""
        if self._calls in (0, BLOCK):
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            if self._calls == BLOCK:
                return (perf_counter() - self._began) / BLOCK
            self._began = perf_counter()
        self._calls += 1
        return None
