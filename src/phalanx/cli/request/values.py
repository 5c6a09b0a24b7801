"""Read the values of options that are more than a word or a number, and refuse wrong ones."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from phalanx.cli.request.options import RunOptions
from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.settings import MOST_PROFILE_STEPS, OnNonfinite
from phalanx.launch.launcher import LAUNCHERS

RATE_UNITS = {"": 1.0, "bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SLOWEST = 0.001
LEAST_RATE, MOST_RATE = 1e3, 1e15  # bits per second
CHECKED, MOST_CHECKED = 12, 1000  # steps
KEPT = 3  # checkpoints
SHORTEST, LONGEST = 1e-9, 3.2e7  # seconds
MINUTES = {"min": 1.0, "h": 60.0}
TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class CheckpointTimes:
    """When checkpoints are written, and how many are kept."""

    epochs: int = 0
    minutes: float | None = None
    keep: int = KEPT
    gap: float = 0.0
    """Least seconds between two checkpoints that are written after epochs."""


def read_launcher(text: str) -> tuple[str, str]:
    """Read ``slurm:partition=gpu`` as the launcher and the options of its cluster."""
    kind, colon, where = text.partition(":")
    if kind not in (known := ["auto", *LAUNCHERS.names()]):
        raise InputError(f"unknown launcher '{kind}'", did_you_mean(kind, known))
    if colon and kind in ("auto", "local", "ssh", "inprocess"):
        raise InputError(
            f"the launcher '{kind}' takes nothing after ':'",
            "Only clusters do: --launcher slurm:partition=gpu, ray:HOST:PORT or spark:URL",
        )
    # Spark's own form, spark://HOST:7077, is as good as spark:spark://HOST:7077.
    return kind, f"{kind}:{where}" if where.startswith("//") else where


def read_slow(text: str | None, option: str = "--slow") -> tuple[float, ...]:
    """Read ``1,1,0.25`` as speeds, one per worker from the first on."""
    if text is None:
        return ()
    return tuple(_speed(part.strip(), option) for part in text.split(","))


def _speed(text: str, option: str) -> float:
    example = f"For example: {option} 1,1,0.25"
    try:
        speed = float(text)
    except ValueError:
        raise InputError(f"{option} must be a list of speeds, not '{text}'", example) from None
    if not SLOWEST <= speed <= 1:
        raise InputError(f"{option} {text}: each speed must be from {SLOWEST:g} to 1", example)
    return speed


def read_rate(text: str | None) -> float | None:
    """Read ``100mbit`` as bits per second."""
    if text is None:
        return None
    number, unit = _split("--rate", text, "For example: --rate 100mbit")
    if unit not in RATE_UNITS:
        known = [name for name in RATE_UNITS if name]
        raise InputError(f"--rate {text}: unknown unit '{unit}'", did_you_mean(unit, known))
    rate = number * RATE_UNITS[unit]
    if not LEAST_RATE <= rate <= MOST_RATE:
        bound = (
            "below 1kbit, the minimum" if rate < LEAST_RATE else "above 1000000gbit, the maximum"
        )
        raise InputError(f"--rate {text} is {bound}", "Try --rate 1mbit.")
    return rate


def read_duration(
    option: str, text: str | None, example: str = "90s, 30min or 2h", *, zero: bool = False
) -> float | None:
    """Read ``0.1ms``, ``90s`` or ``2h`` as seconds."""
    if text is None:
        return None
    example = f"For example: {option} {example}"
    number, unit = _split(option, text, example)
    if unit not in TIME_UNITS:
        what = f"unknown unit '{unit}'" if unit else "a time needs its unit"
        raise InputError(f"{option} {text}: {what}", example)
    found = number * TIME_UNITS[unit]
    if (number == 0 and not zero) or (number and not SHORTEST <= found <= LONGEST):
        bounds = f"{'0, or ' * zero}from 1 ns to a year"
        raise InputError(f"{option} {text}: the time must be {bounds}", example)
    return found


def read_check(text: str) -> tuple[int, OnNonfinite]:
    """Read ``12``, ``off`` or ``12,finite`` as the steps to check, and what to do at a NaN."""
    parts = [part.strip() for part in text.split(",")]
    steps = [part for part in parts if part != "finite"] or [str(CHECKED)]
    off = steps == ["off"]
    if (not off and not (steps[0].isdecimal() and 1 <= int(steps[0]) <= MOST_CHECKED)) or steps[1:]:
        raise InputError(
            f"--check must be a number of steps up to {MOST_CHECKED}, off, or finite, not '{text}'",
            "For example: --check 12, or --check 12,finite",
        )
    return 0 if off else int(steps[0]), "stop" if "finite" in parts else "skip"


def read_checkpoints(text: str, keep: int = KEPT) -> CheckpointTimes:
    """Read ``auto``, ``1`` (epochs), ``10min``, ``keep=5``, or several with commas between."""
    parts = [part.strip() for part in text.split(",")]
    numbers = [part.removeprefix("keep=") for part in parts if part.startswith("keep=")]
    for kept in numbers:
        if not kept.isdecimal() or int(kept[:9]) < 1:
            raise InputError(
                f"--checkpoint-every {text}: keep must be a whole number, 1 or more",
                "For example: --checkpoint-every 1,keep=5; for no checkpoints: 0",
            )
        keep = int(kept[:9])
    times = [part for part in parts if not part.startswith("keep=")] or ["auto"]
    if times == ["auto"]:
        return CheckpointTimes(1, None, keep, AUTOMATIC_GAP)
    found: dict[str, float] = {}
    for part in times:
        number, unit = _split("--checkpoint-every", part, _EVERY_EXAMPLE)
        if unit and unit not in MINUTES:
            raise InputError(f"--checkpoint-every {part}: unknown unit '{unit}'", _EVERY_EXAMPLE)
        what = "a time" if unit else "epochs"
        if what in found:
            raise InputError(f"--checkpoint-every {text} gives {what} twice", _EVERY_EXAMPLE)
        found[what] = number * MINUTES.get(unit, 1.0)
    epochs, minutes = found.get("epochs", 0.0), found.get("a time")
    if not epochs.is_integer():
        raise InputError(f"--checkpoint-every {text}: epochs must be whole numbers", _EVERY_EXAMPLE)
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError(f"--checkpoint-every {text}: the time must be above 0", _EVERY_EXAMPLE)
    return CheckpointTimes(int(epochs), minutes, keep)


AUTOMATIC_GAP = 20.0
_EVERY_EXAMPLE = "For example: --checkpoint-every auto, 1 (epochs), 10min or 1,10min; 0 for none"


def _split(option: str, text: str, example: str) -> tuple[float, str]:
    """Split a text into a number and the unit behind it."""
    found = _NUMBER.fullmatch(text)
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or math.isnan(number):
        raise InputError(f"{option} cannot be '{text.strip()}'", example)
    return number, found[2].lower()


def check_adopted(options: RunOptions, keras: bool) -> None:
    """Refuse options that an adopted script decides by itself; Keras leaves epochs to us."""
    if options.launcher == "inprocess" and options.workers != 1:
        raise InputError(
            "--launcher inprocess needs a script that calls Phalanx: its workers are threads, "
            "which share the random numbers of the script",
            "Leave it out, or call phalanx.join in the script.",
        )
    for option, value in (
        ("--batch", options.batch),
        ("--epochs", None if keras else options.epochs),
        ("--precision", options.precision if options.precision != "float32" else None),
    ):
        if value is not None:
            raise InputError(
                f"{option} does not apply: the script does not call Phalanx, and decides by itself",
                "Change it in the script (its own options follow --), or call phalanx.join there.",
            )


def check_profile(options: RunOptions) -> None:
    check_at_least("--profile", options.profile, 1)
    check_at_most("--profile", options.profile or 1, MOST_PROFILE_STEPS)
    if options.profile and options.launcher == "inprocess":
        raise InputError(
            "--profile cannot be used with --launcher inprocess: a profiler sees all its threads",
            "Leave one of the two out.",
        )


def check_at_least(option: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise InputError(f"{option} must be at least {low}, not {value}", f"Try {option} {low}.")


def check_at_most(option: str, value: int, high: int) -> None:
    if value > high:
        raise InputError(f"{option} must be at most {high}, not {value}", f"Try {option} {high}.")


def read_batches(text: str | None) -> list[int | None]:
    """Read ``128,256`` as numbers; ``None`` means the script's own batch."""
    if text is None:
        return [None]
    batches: list[int | None] = []
    for part in text.split(","):
        try:
            batch = int(part)
        except ValueError:
            raise InputError(
                f"--batch must be whole numbers, not '{part.strip()}'",
                "For example: --batch 128,256",
            ) from None
        check_at_least("--batch", batch, 1)
        if batch in batches:
            raise InputError(f"--batch has {batch} twice", "To run each again: --repeat N")
        batches.append(batch)
    return batches
