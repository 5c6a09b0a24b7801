"""``keras_figures.py SCRIPT [ARGUMENT]…``: runs it, and prints the figures of its ``model.fit``.

For the first process of a TensorFlow script, whose Python need not have Phalanx: standard library
only. The lines are those of ``observe/events/figure_lines.py``; a script that prints such lines
itself is left alone.
"""

import functools
import inspect
import itertools
import json
import os
import runpy
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

MARK = "phalanx-figures"
_HOOKS = Path(__file__).parents[2] / "core" / "script" / "import_hooks.py"
_EPOCHS = itertools.count()  # of all calls of fit


def watch_fit(keras: Any) -> None:
    """Give every ``fit`` one more callback: the first, so that it knows when training ends."""
    plain = keras.Model.fit

    @functools.wraps(plain)
    def fit(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(plain).bind(*args, **kwargs)
        given = call.arguments.get("callbacks") or []
        if not isinstance(given, keras.callbacks.CallbackList):
            own = given if isinstance(given, (list, tuple)) else [given]
            call.arguments["callbacks"] = [_figures(keras.callbacks.Callback), *own]
        return plain(*call.args, **call.kwargs)

    keras.Model.fit = fit


def _figures(base: Any) -> Any:
    class Figures(base):  # type: ignore[misc]  # no method for batches: servers refuse those
        done: Any = None

        def on_train_begin(self, logs: Any = None) -> None:
            _tell(parameters=self.model.count_params(), epochs=self.params.get("epochs"))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.on_train_end()
            self.began, self.ended = time.perf_counter(), 0.0

        def on_test_begin(self, logs: Any = None) -> None:
            self.ended, self.samples = time.perf_counter(), _samples_seen(self.model)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not self.ended:  # there was no validation, before which training ended
                self.on_test_begin()
            self.done = {} if logs is None else logs

        def on_train_end(self, logs: Any = None) -> None:
            """Tell the epoch that is over, now that other callbacks have added their figures."""
            if self.done is not None:
                seconds, after = self.ended - self.began, time.perf_counter() - self.ended
                _tell(epoch=next(_EPOCHS), seconds=seconds, samples=self.samples,
                      evaluate_seconds=after, **_columns(self.done))  # fmt: skip
            self.done = None

    return Figures()


def _columns(logs: dict[str, Any]) -> dict[str, float]:
    """As reports name them; a callback of the script may name its own ``test_…``."""
    found = {}
    for name, value in logs.items():
        kept = name.startswith(("test_", "val_"))
        with suppress(TypeError, ValueError):
            found[name.replace("val_", "validation_", 1) if kept else f"train_{name}"] = float(
                value
            )
    return found


def _samples_seen(model: Any) -> int | None:
    """As many as the mean of the loss was taken of.

    Of mirrored variables only this worker's are read: a sum has to be asked for by all workers.
    """
    with suppress(Exception):  # how Keras counts is its own affair
        count = next(metric.count for metric in model.metrics if metric.name == "loss")
        parts = getattr(count, "values", None)
        if parts is None:
            return int(count.numpy())
        workers = (
            json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", [0])
        )
        return int(sum(part.numpy() for part in parts)) * len(workers)
    return None


def _tell(**figures: Any) -> None:
    print(MARK, json.dumps(figures), flush=True)


def main() -> None:
    del sys.argv[0]
    script = Path(sys.argv[0])
    sys.path[0] = str(script.resolve().parent)
    source = script.read_bytes()
    if MARK.encode() not in source:
        hooks = runpy.run_path(str(_HOOKS))["HOOKS"]
        hooks.add("keras", watch_fit)
        hooks.add("tf_keras", watch_fit)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(script)
    exec(compile(source, script, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
