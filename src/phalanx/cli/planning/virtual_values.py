"""What ``simulate`` is told of a cluster, read and refused in one line each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.errors import InputError

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(us|ms|s)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class ClusterWishes:
    """As typed; what is not given comes from the profile, the probe, or is left out."""

    speeds: str | None = None
    rate: str | None = None
    latency: str | None = None
    jitter: float | None = None
    straggler: Sequence[str] = ()
    fail: Sequence[str] = ()
    step_seconds: str | None = None


def read_short(option: str, text: str | None) -> float | None:
    """``0.1ms`` as seconds."""
    if text is None:
        return None
    found = _TIME.fullmatch(text)
    try:
        return float(found[1]) * UNITS[found[2].lower()] if found else _refuse(option, text)
    except ValueError:
        return _refuse(option, text)


def _refuse(option: str, text: str) -> float:
    raise InputError(f"{option} {text} is not a time", f"For example: {option} 0.1ms, or 2s")


def read_step(text: str | None) -> tuple[float, float] | None:
    """``10ms+0.2ms`` as the seconds of a step, and those of each sample."""
    if text is None:
        return None
    fixed, _, each = text.partition("+")
    first, more = (read_short("--step-seconds", part) or 0.0 for part in (fixed, each or "0s"))
    if first + more <= 0.0:
        raise InputError("--step-seconds must be above 0", "For example: --step-seconds 10ms+0.2ms")
    return first, more


def read_jitter(value: float | None) -> float | None:
    if value is not None and not 0 <= value <= 10:
        raise InputError(f"--jitter must be from 0 to 10, not {value:g}", "Try --jitter 0.1.")
    return value


def read_stragglers(texts: Sequence[str], workers: int) -> dict[int, float]:
    """``3:4``: worker 3 takes 4 times as long."""
    found = {}
    for text in texts:
        rank, _, factor = text.partition(":")
        try:
            found[_rank("--straggler", rank, workers)] = float(factor)
        except ValueError:
            raise InputError(
                f"--straggler {text} is not a worker and a factor",
                "For example: --straggler 3:4, worker 3 takes 4 times as long",
            ) from None
        if not 1 <= float(factor) <= 1000:
            raise InputError(f"--straggler {text}: the factor must be from 1 to 1000", "Try 4.")
    return found


def read_failures(texts: Sequence[str], workers: int) -> dict[int, int]:
    """``2@100``: worker 2 is lost at its step 100."""
    found = {}
    for text in texts:
        rank, _, step = text.partition("@")
        if not step.isdecimal() or int(step) < 1:
            raise InputError(
                f"--fail {text} is not a worker and a step",
                "For example: --fail 2@100, worker 2 is lost at its step 100",
            )
        found[_rank("--fail", rank, workers)] = int(step)
    return found


def _rank(option: str, text: str, workers: int) -> int:
    if not text.strip().isdecimal():
        raise InputError(f"{option}: '{text}' is not a worker", "Workers are counted from 0.")
    if int(text) >= workers:
        raise InputError(
            f"{option}: there is no worker {int(text)} among {workers}",
            f"Workers are counted from 0: the last is {workers - 1}.",
        )
    return int(text)
