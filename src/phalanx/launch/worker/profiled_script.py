"""``profiled_script.py STEPS RANK SCRIPT [ARGUMENT]…``: runs SCRIPT, and profiles some of its steps.

This is for scripts of other frameworks, whose Python need not have Phalanx, so only the standard
library is used. Steps are those of any optimizer of torch, or of ``fit`` of TensorFlow's Keras.
"""

import atexit
import functools
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[3])
"""The folder with our source, from which nothing but the profiler is imported."""


def watch_torch(make: Any, torch: Any) -> None:
    """Count a step whenever the script's first optimizer steps."""
    from phalanx.observe.operators.step_window import TorchRecorder

    window = make(TorchRecorder(torch))
    first: list[int] = []

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            window.stepped()

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(stepped)
    atexit.register(window.end)


def watch_fit(make: Any, keras: Any) -> None:
    """Add a callback to every ``fit``, which counts steps."""
    plain = keras.Model.fit
    made: list[Any] = []

    @functools.wraps(plain)
    def fit(*args: Any, **kwargs: Any) -> Any:
        from phalanx.observe.operators.tensorflow_trace import TensorFlowRecorder

        call = inspect.signature(plain).bind(*args, **kwargs)
        given = call.arguments.get("callbacks") or []
        if not isinstance(given, keras.callbacks.CallbackList):
            if not made:
                made.append(make(TensorFlowRecorder(sys.modules["tensorflow"])))
                atexit.register(made[0].end)
            own = given if isinstance(given, (list, tuple)) else [given]
            call.arguments["callbacks"] = [*own, _steps(keras.callbacks.Callback, made[0])]
        return plain(*call.args, **call.kwargs)

    keras.Model.fit = fit


def _steps(base: Any, window: Any) -> Any:
    class Steps(base):  # type: ignore[misc]
        _supports_tf_logs = True  # otherwise Keras waits for the figures of every batch

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.done = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Count the steps since the last call in this epoch: a call may cover several."""
            window.stepped(batch + 1 - self.done)
            self.done = batch + 1

        def on_train_end(self, logs: Any = None) -> None:
            window.end()  # a worker of TensorFlow may be killed when the first one has ended

    return Steps()


def main() -> None:
    steps, rank = int(sys.argv[1]), int(sys.argv[2])
    del sys.argv[:3]
    script = Path(sys.argv[0])
    sys.path[0] = _ROOT
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.core.script.import_hooks import HOOKS
    from phalanx.observe.operators.step_window import StepWindow

    sys.path[0] = str(script.resolve().parent)
    paths = RunPaths(Path(os.environ["PHALANX_RUN"]))

    def make(recorder: Any) -> Any:
        return StepWindow(recorder, paths.operators_of(rank), paths.trace_of(rank), steps=steps)

    HOOKS.add("torch", functools.partial(watch_torch, make))
    HOOKS.add("keras", functools.partial(watch_fit, make))
    HOOKS.add("tf_keras", functools.partial(watch_fit, make))
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(script)
    exec(compile(script.read_bytes(), script, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
