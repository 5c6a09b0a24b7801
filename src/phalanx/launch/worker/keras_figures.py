"""``keras_figures.py SCRIPT [ARGUMENT]…``: runs SCRIPT, and prints figures of its ``model.fit``.

This is for the first process of a TensorFlow script, whose Python need not have Phalanx, so only
the standard library is used. ``observe/events/figure_lines.py`` describes the lines; for a script
that prints such lines itself, none are added.
"""

import atexit
import functools
import inspect
import itertools
import json
import os
import runpy
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

MARK = "phalanx-figures"
MEASURE, MEASURED = "PHALANX_MEASURE", "measured.json"
"""The variable with the seconds for measuring steps only, and the file for the results."""
_WARM_UP, PATIENCE = 3, 30
"""First steps that are not counted; the script is ended after so many times the seconds."""
_HOOKS = Path(__file__).parents[2] / "core" / "script" / "import_hooks.py"
_EPOCHS = itertools.count()  # counts epochs of all calls of fit
_BEGAN = time.perf_counter()
_SPENT = dict.fromkeys(("start", "read", "evaluate", "checkpoint"), 0.0)
"""Seconds of the script's calls that belong to these phases; ``start``: of joining the others."""
_inside: list[str] = []


def _time_calls(phase: str, owner: Any, *names: str) -> None:
    """Add the seconds of calls to ``phase``, unless they are made within another such call."""
    for name in names:
        plain = getattr(owner, name, lambda *_: None)

        @functools.wraps(plain)
        def timed(*args: Any, plain: Any = plain, **kwargs: Any) -> Any:
            began = time.perf_counter()
            _inside.append(phase)
            try:
                return plain(*args, **kwargs)
            finally:
                _inside.pop()
                if not _inside:
                    _SPENT[phase] += time.perf_counter() - began

        setattr(owner, name, timed)


def watch_phases(keras: Any) -> None:
    _time_calls("evaluate", keras.Model, "evaluate")
    _time_calls("checkpoint", keras.Model, "save", "save_weights")
    for name, module in [*sys.modules.items()]:
        if ".datasets." in name and hasattr(module, "load_data"):
            _time_calls("read", module, "load_data")


def watch_tensorflow(took: dict[str, float], tensorflow: Any) -> None:
    """Count TensorFlow's import, which ``took`` so long, and meeting the others as the start."""
    _SPENT["start"] += took.get("tensorflow", 0.0)
    with suppress(AttributeError):
        kinds = tensorflow.distribute
        for kind in (kinds.MultiWorkerMirroredStrategy, kinds.ParameterServerStrategy):
            _time_calls("start", kind, "__init__")


def _taken() -> dict[str, float]:
    """Return the seconds of phases that come again and again, since the last call."""
    found = {f"{name}_seconds": _SPENT[name] for name in ("evaluate", "checkpoint")}
    _SPENT.update(evaluate=0.0, checkpoint=0.0)
    return found


def watch_fit(keras: Any) -> None:
    watch_phases(keras)
    seconds, base = float(os.environ.get(MEASURE, "0")), keras.callbacks.Callback
    add_to_fit(keras, lambda: _steps(base, seconds) if seconds else _figures(base))


def add_to_fit(keras: Any, make: Callable[[], Any]) -> None:
    """Add a callback to every ``fit``, before the others, to see at once when training ends."""
    plain = keras.Model.fit

    @functools.wraps(plain)
    def fit(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(plain).bind(*args, **kwargs)
        given = call.arguments.get("callbacks") or []
        if not isinstance(given, keras.callbacks.CallbackList):
            own = given if isinstance(given, (list, tuple)) else [given]
            call.arguments["callbacks"] = [make(), *own]
        return plain(*call.args, **call.kwargs)

    keras.Model.fit = fit


def _figures(base: Any) -> Any:
    class Figures(base):  # type: ignore[misc]  # has no method for batches, which servers refuse
        done: Any = None
        told = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.on_train_end()
            self.began, self.ended = time.perf_counter(), 0.0

        def on_test_begin(self, logs: Any = None) -> None:
            self.ended, self.samples = time.perf_counter(), _samples_seen(self.model)
            self.rate = _rate(self.model)  # not later, when other callbacks change it

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not self.ended:  # without validation, training ends here
                self.on_test_begin()
            if not self.told:  # not sooner, because a model may be built by its first batch
                self.told = True
                others = sum(_SPENT[phase] for phase in ("start", "read"))
                _tell(parameters=self.model.count_params(), epochs=self.params.get("epochs"),
                      since_seconds=time.perf_counter() - self.began, read_seconds=_SPENT["read"],
                      prepare_seconds=max(0.0, self.began - _BEGAN - others))  # fmt: skip
            self.done = {} if logs is None else logs

        def on_train_end(self, logs: Any = None) -> None:
            """Print the epoch that is over, now that other callbacks have added their figures."""
            if self.done is not None:
                seconds = self.ended - self.began
                _tell(epoch=next(_EPOCHS), seconds=seconds, samples=self.samples, rate=self.rate,
                      **_taken(), **_columns(self.done))  # fmt: skip
            self.done = None

    return Figures()


def _steps(base: Any, seconds: float) -> Any:
    class Steps(base):  # type: ignore[misc]
        _supports_tf_logs = True  # otherwise Keras waits for the figures of every batch

        def on_train_begin(self, logs: Any = None) -> None:
            self.took: list[float] = []
            self.start = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.done, self.last = 0, 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Time the steps since the last call in this epoch; a call may cover several steps."""
            now, steps = time.perf_counter(), batch + 1 - self.done
            if self.last:
                self.took += [(now - self.last) / steps] * steps
            self.start = self.start or now
            self.done, self.last = batch + 1, now
            if sum(self.took[_WARM_UP:]) > seconds:
                self.write(self.params.get("steps"))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch + 1 == self.params["epochs"] and len(self.took) > _WARM_UP:
                self.write(self.done)

        def write(self, steps: int | None) -> None:
            """Write the measurements, and end the script here."""
            took, seen = self.took[_WARM_UP:], _samples_seen(self.model)
            found = {
                "step": statistics.fmean(took),
                "spread": statistics.pstdev(took),
                "counted": len(took),
                "samples": seen / self.done if seen else None,
                "steps": steps,
                "epochs": self.params["epochs"],
                "start": self.start - _BEGAN,
            }
            folder = Path(os.environ["PHALANX_RUN"], "files")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MEASURED).write_text(json.dumps(found), encoding="utf-8")
            os._exit(0)

    return Steps()


def _columns(logs: dict[str, Any]) -> dict[str, float]:
    """Return the figures by their names in reports; names that begin with ``test_`` are kept."""
    found = {}
    for name, value in logs.items():
        kept = name.startswith(("test_", "val_"))
        column = name.replace("val_", "validation_", 1) if kept else f"train_{name}"
        with suppress(TypeError, ValueError):
            found[column] = float(value)
    return found


def _rate(model: Any) -> float | None:
    """Return the optimizer's present learning rate, if it can be read."""
    with suppress(Exception):  # a schedule of tf_keras, an optimizer of the script's own
        rate = model.optimizer.learning_rate
        return float(getattr(rate, "values", [rate])[0].numpy())  # of a mirrored variable, one part
    return None


def _samples_seen(model: Any) -> int | None:
    """Return the number of samples in the mean of the loss; ``None`` if it cannot be found.

    Only this worker's part of mirrored variables is read, because all workers would have to ask for
    their sum. So a last batch that cannot be divided evenly counts up to one sample a worker too
    many.
    """
    with suppress(Exception):  # how Keras counts may change
        count = next(metric.count for metric in model.metrics if metric.name == "loss")
        parts = getattr(count, "values", None)
        if parts is None:
            return int(count.numpy())
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        return int(sum(part.numpy() for part in parts)) * len(cluster["worker"])
    return None


def _tell(**figures: Any) -> None:
    print(MARK, json.dumps(figures), flush=True)


def _tell_rest() -> None:
    """Tell what the script evaluated and saved after its last ``fit``."""
    if next(_EPOCHS) and any((found := _taken()).values()):
        _tell(**found)


def main() -> None:
    source = Path(sys.argv[1]).read_bytes()
    seconds = float(os.environ.get(MEASURE, "0"))
    if seconds:
        patience = threading.Timer(PATIENCE * seconds, os._exit, [0])
        patience.daemon = True
        patience.start()
    if seconds or MARK.encode() not in source:
        hooks = runpy.run_path(str(_HOOKS))["HOOKS"]
        hooks.add("keras", watch_fit)
        hooks.add("tf_keras", watch_fit)
        hooks.add("tensorflow", functools.partial(watch_tensorflow, hooks.seconds))
        atexit.register(_tell_rest)
    run_script()


def run_script() -> None:
    """Run the script that the first argument names, as ``python SCRIPT`` would."""
    del sys.argv[0]
    script = Path(sys.argv[0])
    sys.path[0] = str(script.resolve().parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(script)
    exec(compile(script.read_bytes(), script, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
