"""What a worker process does before the user's script runs, once it is tied down and pinned.

Steps are named lazily, so that launchers need to know nothing about what they do.
"""

from __future__ import annotations

from phalanx.core.registry import Registry

STARTUP = Registry(
    "startup step",
    {
        "optimizers": "phalanx.train.start.light_optimizers:without_compiler",
        "seed": "phalanx.train.start.seed:seed_this_worker",
    },
)


def run_startup() -> None:
    """Take every step, in the order of their names."""
    for name in STARTUP.names():
        STARTUP.get(name)()
