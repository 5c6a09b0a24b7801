"""``phalanx.data.load("digits")``: ready-made data, by name."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from phalanx.core.context import current
from phalanx.core.errors import InputError
from phalanx.core.files import cache_home
from phalanx.core.registry import Registry
from phalanx.core.settings import DATA, SETTINGS, RunSettings

# A source takes the folder of its files and returns (train, test, checksums of the files);
# train and test are (x, y): x float32 in [0, 1], NCHW; y int64.
SOURCES = Registry("data source", {"digits": "phalanx.data.sources.digits:digits"})
PUBLISHED = ("mnist", "fashion-mnist", "kmnist", "cifar-10")
"""Data sets that torchvision has; Phalanx does not read them any more."""


class Samples(NamedTuple):
    """Images (float32 in [0, 1], NCHW) and their classes (int64)."""

    x: Tensor
    y: Tensor


class Loaded(NamedTuple):
    """``train, test = load(name)``."""

    train: Samples
    test: Samples


@dataclass(frozen=True)
class LoadRecord:
    """One call of :func:`load`, for the record of the run."""

    name: str
    samples: int
    checksums: Mapping[str, str]
    seconds: float
    began: float
    """Seconds of the monotonic clock."""
    thread: int
    """The thread that loaded; workers may be threads of one process."""


LOADED: list[LoadRecord] = []


def load(name: str, *, folder: Path | None = None) -> Loaded:
    """The data set ``name``: ``digits``, or one of a registered source.

    Its files are looked for in ``folder``, else in the data folder of the run's settings, else in
    ``$PHALANX_DATA/NAME``, else in the user's cache.
    """
    began = time.monotonic()
    if name in PUBLISHED and name not in SOURCES.names():
        raise InputError(
            f"Phalanx does not read '{name}' itself",
            "Read it in the script, by torchvision or as examples/published.py does: --data DIR",
        )
    source, place = SOURCES.get(name), data_folder(name, folder)
    train, test, checksums = source(place)
    loaded = Loaded(Samples(*train), Samples(*test))
    samples = len(loaded.train.y) + len(loaded.test.y)
    seconds = time.monotonic() - began
    LOADED.append(LoadRecord(name, samples, checksums, seconds, began, threading.get_ident()))
    return loaded


def share(*sets: Any) -> None:
    """Let the threads of one process keep equal data once."""
    if current() is not None:
        from phalanx.data.shared_memory import share

        share(*sets)


def data_folder(name: str, folder: Path | None = None) -> Path:
    """The folder of the files of ``name``, which may not exist yet."""
    context = current()
    environment = context.environment if context else os.environ
    chosen = folder or _folder_of_the_run(environment)
    if chosen is not None:
        inside = chosen.expanduser() / name
        return inside if inside.is_dir() else chosen.expanduser()
    home = environment.get(DATA)
    return (Path(home).expanduser() if home else cache_home() / "datasets") / name


def _folder_of_the_run(environment: Mapping[str, str]) -> Path | None:
    text = environment.get(SETTINGS)
    data = RunSettings.from_json(text).data if text else None
    return Path(data) if data else None
