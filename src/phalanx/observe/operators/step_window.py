"""Profiles some steps of a worker, in the process that takes them, and writes what was found.

Only the standard library is used, and the framework that the script has imported: a script of
another framework is profiled in its own Python, which need not have Phalanx's packages.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

from phalanx.observe.operators.trace_table import LAYER, STEP, table_of_torch

FIRST = 10
"""The steps that a worker takes before it is profiled."""
MOST_TRACE = 64 << 20
_MOST_READ = 1 << 30
_SETTLE = 2
"""Steps after the profile that still take longer, because workers wrote it at different times."""


class Recorder(Protocol):
    """A framework's profiler."""

    framework: str

    def start(self) -> None: ...

    def mark(self, count: int) -> None:
        """Note that ``count`` steps are over."""

    def stop(self, trace: Path) -> dict[str, Any]:
        """Write the trace, and return the table of its operators."""
        ...


class StepWindow:
    """Counts the steps of a worker; from one of them on, profiles a number of steps."""

    def __init__(
        self, recorder: Recorder, table: Path, trace: Path, *, steps: int, first: int = FIRST
    ) -> None:
        self._recorder, self._table, self._trace = recorder, table, trace
        self._first, self._steps = first, steps
        self._plain: list[float] = []
        self._profiled: list[float] = []
        self._found: dict[str, Any] | None = None
        self._done = self._after = 0
        self._records = self._over = False
        self._last = time.perf_counter()

    def stepped(self, count: int = 1) -> None:
        """Note that the worker has taken ``count`` steps since the last call."""
        if self._over:
            return
        now = time.perf_counter()
        took = (now - self._last) / count
        self._done += count
        if self._records:
            self._profiled.append(took)
            self._recorder.mark(count)
            if self._done > self._first + self._steps:  # one more, because the first is left out
                self._stop()
        elif self._found is None:
            if self._done >= self._first:
                self._try(self._recorder.start)
                self._records = not self._over
        else:
            self._after += count
            if self._after > _SETTLE:
                self._plain.append(took)
            if self._after >= self._steps + _SETTLE:
                self._write()
                self._over = True
        self._last = time.perf_counter()

    def end(self) -> None:
        """Write what there is when training ends earlier."""
        if self._records and not self._over:
            self._stop()
        if self._found is not None and not self._over:
            self._write()
        if self._found is None and not self._over:
            _say(f"nothing was profiled: it took {self._done} steps, and {self._first} come first")
        self._over = True

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # training goes on without a profile
            _say(f"nothing was profiled: {error}")
            self._over = True

    def _stop(self) -> None:
        self._records = False
        self._try(self._read)
        if not self._over:
            self._write()

    def _read(self) -> None:
        self._table.parent.mkdir(parents=True, exist_ok=True)
        found = self._recorder.stop(self._trace)
        if self._trace.stat().st_size > MOST_TRACE:
            self._trace.unlink()
            _say("the trace is too large to keep; profile fewer steps")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._found = {"framework": self._recorder.framework, "memory_bytes": peak, **found}

    def _write(self) -> None:
        cost = None
        if self._plain and self._profiled[1:]:
            cost = statistics.median(self._profiled[1:]) / statistics.median(self._plain)
        part = self._table.with_suffix(".part")
        part.write_text(json.dumps({**(self._found or {}), "cost": cost}), encoding="utf-8")
        os.replace(part, self._table)


def _say(line: str) -> None:
    print(f"phalanx: {line}", file=sys.stderr, flush=True)


class TorchRecorder:
    """Records what torch computes; ``torch`` is the module, which the script has imported."""

    framework = "torch"

    def __init__(
        self, torch: Any, ranges: Callable[[], AbstractContextManager[object]] | None = None
    ) -> None:
        """``ranges``: names more ranges of a step while it is entered."""
        self._torch, self._ranges = torch, ranges
        self._inside = ExitStack()

    def start(self) -> None:
        torch, inside = self._torch, self._inside
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=kinds)
        with _quiet():
            self._profile.start()
        self._on_gpu = len(kinds) > 1
        inside.enter_context(_named_layers(torch))
        if self._ranges is not None:
            inside.enter_context(self._ranges())
        self._begin()

    def _begin(self) -> None:
        self._step = self._torch.profiler.record_function(STEP)
        self._step.__enter__()

    def mark(self, count: int) -> None:
        self._step.__exit__(None, None, None)
        self._begin()

    def stop(self, trace: Path) -> dict[str, Any]:
        self._inside.close()
        if self._on_gpu:
            self._torch.cuda.synchronize()
        with _quiet():
            self._profile.stop()
        self._profile.export_chrome_trace(str(trace))
        del self._profile
        with gzip.open(trace) as file:
            text = file.read(_MOST_READ + 1)
        if len(text) > _MOST_READ:
            raise ValueError("the trace is too large; profile fewer steps")
        found = table_of_torch(json.loads(text))
        if self._on_gpu:
            found["device_memory_bytes"] = self._torch.cuda.max_memory_allocated()
        return found


@contextlib.contextmanager
def _quiet() -> Any:
    """Drop what torch's profiler says of itself, which no variable of its own prevents."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _named_layers(torch: Any) -> Any:
    """Make a range of each call of a module inside a model, named as the model names it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["frames"]:  # hooks would have it compile again
        yield
        return
    names: dict[int, str] = {}
    calls = threading.local()

    def enter(module: Any, _: Any) -> None:
        stack = calls.__dict__.setdefault("stack", [])
        if not stack and id(module) not in names:
            for name, inner in module.named_modules():
                kind = type(inner).__name__
                names[id(inner)] = f"{name.removeprefix('module.')} {kind}".strip()
        entered = torch.profiler.record_function(LAYER + names.get(id(module), ""))
        entered.__enter__()
        stack.append(entered)

    def leave(module: Any, _: Any, __: Any) -> None:
        calls.stack.pop().__exit__(None, None, None)

    hooks = torch.nn.modules.module
    first = hooks.register_module_forward_pre_hook(enter)
    last = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        first.remove()
        last.remove()
