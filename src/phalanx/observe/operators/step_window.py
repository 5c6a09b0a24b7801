"""Profiles some steps of a worker, in the process that takes them, and writes what was found."""

from __future__ import annotations

import gzip
import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.observe.operators import trace_table
from phalanx.observe.operators.trace_table import LAYER, STEP

FIRST = 10
"""The steps that a worker takes before it is profiled."""


class TorchRecorder:
    """Records what torch computes; ``torch`` is the module, which the script has imported."""

    def __init__(self, torch: Any, name_parts: Callable[[], None] = lambda: None) -> None:
        """``name_parts``: has more parts of a step make ranges."""
        self._torch, self._name_parts = torch, name_parts
        self.range = torch.profiler.record_function

    def start(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch reports its start and end
        kind = self._torch.profiler.ProfilerActivity
        kinds = [kind.CPU, kind.CUDA] if self._torch.cuda.is_initialized() else [kind.CPU]
        self._profile = self._torch.profiler.profile(activities=kinds)
        self._profile.start()
        self._call = self._torch.nn.Module.__call__  # which may share calls out
        self._name_layers()
        self._name_parts()

    def stop(self, trace: Path, each: int) -> dict[str, Any]:
        self._torch.nn.Module.__call__ = self._call
        self._profile.stop()
        self._profile.export_chrome_trace(str(trace))
        del self._profile
        with gzip.open(trace) as file:
            found = trace_table.table_of_torch(json.load(file))
        peak = self._torch.cuda.max_memory_allocated()
        return found | ({"memory_bytes": peak} if peak else {})

    def _name_layers(self) -> None:
        """Make a range of each call of a module inside a model, named as the model names it."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None and dynamo.counters["frames"]:  # this would have it compile again
            return
        names: dict[int, str] = {}
        plain = self._call

        def call(module: Any, *args: Any, **named: Any) -> Any:
            if id(module) not in names:  # the model, because it is called before its layers
                for name, inner in module.named_modules():
                    found = f"{name.removeprefix('module.')} {type(inner).__name__}"
                    names[id(inner)] = found.strip()
            with self.range(LAYER + names[id(module)]):
                return plain(module, *args, **named)

        self._torch.nn.Module.__call__ = call


class TensorFlowRecorder:
    """Records what TensorFlow computes; ``tensorflow`` is the module."""

    def __init__(self, tensorflow: Any) -> None:
        self._profiler = tensorflow.profiler.experimental
        self.range = self._profiler.Trace

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-profile-")
        self._profiler.start(self._folder.name)

    def stop(self, trace: Path, each: int) -> dict[str, Any]:
        self._profiler.stop()
        with self._folder as folder:
            events = list(
                trace_table.read_events(next(Path(folder).rglob("*.xplane.pb")).read_bytes())
            )
        with gzip.open(trace, "wt", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)
        return trace_table.table_of_tensorflow(events, each)


@dataclass
class StepWindow:
    """Counts the steps of a worker, and profiles ``steps`` of them after the ``first`` ones."""

    recorder: TorchRecorder | TensorFlowRecorder
    table: Path
    steps: int
    first: int = FIRST
    _done: int = 0
    _each: int = 1
    """How many steps were noted at once."""
    _range: Any = None
    """The range of the step that is recorded."""
    _over: bool = False

    def stepped(self, count: int = 1) -> None:
        """Note that the worker has taken ``count`` steps since the last call."""
        self._done += count
        if self._over or self._done < self.first:
            return
        self._each = count
        if self._range is None:
            self._try(self.recorder.start)
        else:
            self._range.__exit__(None, None, None)
        if not self._over:
            self._range = self.recorder.range(STEP)
            self._range.__enter__()
        if self._done > self.first + self.steps:  # one more, because the first is left out
            self.end()

    def end(self) -> None:
        """Write what there is, because training has ended or enough is known."""
        if not self._over and self._range is None:
            _say(f"nothing was profiled: there were {self._done} steps, and {self.first} go first")
        elif not self._over:
            self._try(self._write)
        self._over = True

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # training goes on without a profile
            _say(f"nothing was profiled: {error}")
            self._over = True

    def _write(self) -> None:
        self._range.__exit__(None, None, None)
        self.table.parent.mkdir(parents=True, exist_ok=True)
        found = {"memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        found |= self.recorder.stop(self.table.with_suffix(".trace.json.gz"), self._each)
        self.table.write_text(json.dumps(found), encoding="utf-8")


def _say(line: str) -> None:
    print(f"phalanx: {line}", file=sys.stderr, flush=True)
