"""What a worker process does before the user's script runs, once it is tied down and pinned.

Steps are named lazily, so that launchers need to know nothing about what they do.
"""

from __future__ import annotations

import threading
import time

from phalanx.core.registry import Registry

STARTUP = Registry(
    "startup step",
    {
        "optimizers": "phalanx.sync.state.skip_dynamo_import:without_compiler",
        "seed": "phalanx.train.start.seed:seed_this_worker",
    },
)

ADOPTION = Registry(
    "adoption step", {"hooks": "phalanx.train.adopt.torch_patches:adopt_this_worker"}
)
PROFILE = Registry("profile step", {"files": "phalanx.train.files.side_effects:keep_all_apart"})

_worker = threading.local()  # workers may be threads of one process


def run_startup(*, adopt: bool = False, profile: bool = False) -> None:
    """Take every step, in the order of their names; first what an adopted script needs."""
    if profile:
        PROFILE.get("files")()
    if adopt:
        ADOPTION.get("hooks")()
    for name in STARTUP.names():
        STARTUP.get(name)()
    _worker.script_began = time.monotonic()


def script_seconds() -> float:
    """How long this worker's script has been running; 0 where Phalanx did not start it."""
    now = time.monotonic()
    return now - getattr(_worker, "script_began", now)
