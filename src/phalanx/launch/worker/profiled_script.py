"""``profiled_script.py STEPS RANK SCRIPT [ARGUMENT]…``: runs SCRIPT, and profiles some steps of it.

This is for scripts of other frameworks, whose Python need not have Phalanx, so only the standard
library is used. Steps are those of the first optimizer of torch, or of ``fit`` of TensorFlow.
"""

import atexit
import functools
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the folder with our source, from which the script imports nothing
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.import_hooks import HOOKS
from phalanx.launch.worker.keras_figures import add_to_fit, run_script
from phalanx.observe.operators.step_window import StepWindow, TensorFlowRecorder, TorchRecorder


def watch_torch(make: Any, torch: Any) -> None:
    window = make(TorchRecorder(torch))
    atexit.register(window.end)
    first: list[Any] = []

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not first:
            first.append(optimizer)
        if optimizer is first[0]:
            window.stepped()

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(stepped)


def watch_fit(make: Any, keras: Any) -> None:
    window = functools.cache(lambda: make(TensorFlowRecorder(sys.modules["tensorflow"])))
    add_to_fit(keras, lambda: _steps(keras.callbacks.Callback, window()))


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
    steps, rank = map(int, sys.argv[1:3])
    del sys.argv[1:3]
    paths = RunPaths(Path(os.environ["PHALANX_RUN"]))

    def make(recorder: Any) -> StepWindow:
        return StepWindow(recorder, paths.operators_of(rank), paths.trace_of(rank), steps)

    HOOKS.add("torch", functools.partial(watch_torch, make))
    for keras in ("keras", "tf_keras"):
        HOOKS.add(keras, functools.partial(watch_fit, make))
    run_script()


if __name__ == "__main__":
    main()
