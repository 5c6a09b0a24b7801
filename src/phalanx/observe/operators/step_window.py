"""Profiles some steps of a worker, in the process that takes them, and writes what was found."""

from __future__ import annotations

import gzip
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from phalanx.observe.operators.trace_table import LAYER, STEP, table_of_torch

FIRST = 10
"""The steps that a worker takes before it is profiled."""
_MOST_TRACE, _MOST_READ = 64 << 20, 1 << 30
_SETTLE = 2
"""Calls after the profile that take longer, because workers write it at different times."""


class Recorder(Protocol):
    """A framework's profiler: ``mark`` is called after each step, or several at once; ``stop``
    writes the trace, and returns the table of its operators."""

    framework: str

    def start(self) -> None: ...
    def mark(self, count: int) -> None: ...
    def stop(self, trace: Path) -> dict[str, Any]: ...


@dataclass
class StepWindow:
    """Counts the steps of a worker, and profiles ``steps`` of them after the ``first`` ones."""

    recorder: Recorder
    table: Path
    trace: Path
    steps: int
    first: int = FIRST
    _state: str = "before"
    _done: int = 0
    _plain: list[float] = field(default_factory=list)
    _profiled: list[float] = field(default_factory=list)
    _found: dict[str, Any] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def stepped(self, count: int = 1) -> None:
        """Note that the worker has taken ``count`` steps since the last call."""
        if self._state == "over":
            return
        took = (time.perf_counter() - self._last) / count
        self._done += count
        if self._state == "recording":
            self._profiled.append(took)
            self.recorder.mark(count)
            if self._done > self.first + self.steps:  # one more, because the first is left out
                self._try("after", self._stop)
        elif self._state == "after":
            self._plain.append(took)
            if len(self._plain) >= _SETTLE + len(self._profiled):
                self.end()
        elif self._done >= self.first:
            self._try("recording", self.recorder.start)
        self._last = time.perf_counter()

    def end(self) -> None:
        """Write what there is, because training has ended or enough is known."""
        if self._state == "before":
            _say(f"nothing was profiled: there were {self._done} steps, and {self.first} go first")
        elif self._state == "recording":
            self._try("over", self._stop)
        elif self._state == "after":
            self._write()
        self._state = "over"

    def _try(self, following: str, do: Callable[[], None]) -> None:
        try:
            do()
            self._state = following
        except Exception as error:  # training goes on without a profile
            _say(f"nothing was profiled: {error}")
            self._state = "over"

    def _stop(self) -> None:
        self.table.parent.mkdir(parents=True, exist_ok=True)
        self._found = self.recorder.stop(self.trace)
        if self.trace.stat().st_size > _MOST_TRACE:
            self.trace.unlink()
            _say("the trace is too large to keep: profile fewer steps")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._found |= {"framework": self.recorder.framework, "memory_bytes": peak}
        self._write()

    def _write(self) -> None:
        plain, profiled = self._plain[_SETTLE:], self._profiled[1:]
        cost = median(profiled) / median(plain) if plain and profiled else None
        part = self.table.with_suffix(".part")
        part.write_text(json.dumps({**self._found, "cost": cost}), encoding="utf-8")
        part.replace(self.table)


def _say(line: str) -> None:
    print(f"phalanx: {line}", file=sys.stderr, flush=True)


class TorchRecorder:
    """Records what torch computes; ``torch`` is the module, which the script has imported."""

    framework = "torch"

    def __init__(
        self, torch: Any, ranges: Callable[[], AbstractContextManager[object]] = ExitStack
    ) -> None:
        """``ranges``: names more ranges of a step while it is entered."""
        self._torch, self._ranges = torch, ranges
        self._inside = ExitStack()

    def start(self) -> None:
        kind = self._torch.profiler.ProfilerActivity
        self._on_gpu = self._torch.cuda.is_available() and self._torch.cuda.is_initialized()
        kinds = [kind.CPU, kind.CUDA] if self._on_gpu else [kind.CPU]
        with _quiet():
            self._profile = self._torch.profiler.profile(activities=kinds)
            self._profile.start()
        self._inside.enter_context(_named_layers(self._torch))
        self._inside.enter_context(self._ranges())
        self._step = self._torch.profiler.record_function(STEP).__enter__()

    def mark(self, count: int) -> None:
        self._step.__exit__(None, None, None)
        self._step = self._torch.profiler.record_function(STEP).__enter__()

    def stop(self, trace: Path) -> dict[str, Any]:
        self._step.__exit__(None, None, None)
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
            raise ValueError("the trace is too large: profile fewer steps")
        peak = self._torch.cuda.max_memory_allocated() if self._on_gpu else 0
        return table_of_torch(json.loads(text)) | {"device_memory_bytes": peak}


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what torch's profiler says of itself, which no variable of its own prevents."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _named_layers(torch: Any) -> Iterator[None]:
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
                found = f"{name.removeprefix('module.')} {type(inner).__name__}"
                names[id(inner)] = found.strip()
        layer = LAYER + names.get(id(module), "")
        stack.append(torch.profiler.record_function(layer).__enter__())

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
