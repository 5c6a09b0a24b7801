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

NOTHING = "nothing was profiled: the script calls neither Keras' fit nor an optimizer of torch"


def watch_torch(make: Any, torch: Any) -> None:
    window = make(TorchRecorder(torch))
    atexit.register(window.end)
    found: dict[str, Any] = {}

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer is found.setdefault("first", optimizer):
            window.stepped()

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(stepped)


def watch_fit(make: Any, keras: Any) -> None:
    window = functools.cache(lambda: make(TensorFlowRecorder(sys.modules["tensorflow"])))
    done = 0

    def stepped(batch: int, logs: Any) -> None:
        """Count the steps since the last call, which may be several; each epoch begins at 0."""
        nonlocal done
        window().stepped(batch + 1 - (done if batch >= done else 0))
        done = batch + 1

    def callback() -> Any:
        # A worker of TensorFlow may be killed when the first one has ended: it writes sooner.
        found = keras.callbacks.LambdaCallback(
            on_train_batch_end=stepped, on_train_end=lambda logs: window().end()
        )
        found._supports_tf_logs = True  # otherwise Keras waits for the figures of every batch
        return found

    add_to_fit(keras, callback)


def main() -> None:
    steps, rank = map(int, sys.argv[1:3])
    del sys.argv[1:3]
    table = RunPaths(Path(os.environ["PHALANX_RUN"])).profiles / f"rank-{rank}.json"
    windows: list[StepWindow] = []

    def make(recorder: Any) -> StepWindow:
        windows.append(StepWindow(recorder, table, steps))
        return windows[-1]

    HOOKS.add("torch", functools.partial(watch_torch, make))
    for keras in ("keras", "tf_keras"):
        HOOKS.add(keras, functools.partial(watch_fit, make))
    atexit.register(lambda: windows or print(f"phalanx: {NOTHING}", file=sys.stderr, flush=True))
    run_script()


if __name__ == "__main__":
    main()
