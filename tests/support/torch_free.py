"""A plugin for the launch tests: workers of torch-free scripts start without importing torch."""

from __future__ import annotations

from phalanx.core.script.startup import STARTUP

for step in STARTUP.names():
    STARTUP.add(step, "torch_free:nothing")


def nothing() -> None:
    pass
