"""The strategies that the contract suites are about: all of them, plain, with options, with codecs.

A strategy that a plug-in registers is among them by its name alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings

from phalanx.core.spec import known_strategies, parse_spec

OPTIONS = [
    "async:overlap=yes",
    "ssp:bound=0",
    "ssp:bound=3",
    "ssp:overlap=yes",
    "groups:size=2",
    "groups:by=speed",
    "localsgd:every=3",
    "diloco:every=3",
]
CODED = [
    "allreduce+int8",
    "async+topk:ratio=0.25",
    "localsgd+fp16",
    "groups:size=2+powersgd",
    "bsp+int4",
]
SWITCHED = ["allreduce@0.5/async", "async@0.5/allreduce", "async@1e/allreduce"]
NAMES = [name for name in known_strategies() if name != "single"]
UNCODED = [*NAMES, *OPTIONS]
EVERY = [*UNCODED, *CODED]
STORE = ["allreduce", "bsp", "async", "ssp", "dssp", "groups"]
"""Those that keep one optimizer state for all, so that a switch between them changes nothing."""


def quick(specs: list[str]) -> list[Any]:
    """Those with options only in the slow suite: for tests that train long, or multiply cases."""
    return [pytest.param(s, marks=pytest.mark.slow if s in OPTIONS else ()) for s in specs]


def is_lockstep(spec: str) -> bool:
    return all(phase.traits.lockstep for phase in parse_spec(spec).phases)


LOCKSTEP = [spec for spec in EVERY if is_lockstep(spec)]
FREE = [spec for spec in EVERY if not is_lockstep(spec)]
SAME_SUM = [name for name in NAMES if name != "diloco"]
"""All that, of a gradient that never changes, end where one process ends."""


def examples(count: int) -> Callable[[Any], Any]:
    """Without shrinking: an example is read as it is, and each costs a training or more.

    ``PHALANX_TEST_RANDOM=1`` draws others every time.
    """
    fixed, found = not os.environ.get("PHALANX_TEST_RANDOM"), (Phase.explicit, Phase.generate)
    return settings(
        max_examples=count, deadline=None, derandomize=fixed, phases=found, database=None
    )
