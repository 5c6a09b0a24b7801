"""Runs the real command line in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil

LIMIT = 240.0
PHALANX = [sys.executable, "-m", "phalanx"]
TORCH = """
import gc, json, os, pathlib, random, signal, sys, time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, TensorDataset

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
"""
"""How an unchanged script begins."""


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Plain Python to its end; ``options`` are those of ``subprocess.run``."""
    usual = {"capture_output": True, "text": True, "timeout": LIMIT, "check": False}
    return subprocess.run([sys.executable, *words], **{**usual, **options})


def phalanx(
    *words: str, cwd: Path, limit: float = LIMIT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """``phalanx WORDS`` to its end."""
    return python(*PHALANX[1:], *words, cwd=cwd, env=_environment(cwd, variables), timeout=limit)


def succeeds(
    *words: str, cwd: Path, limit: float = LIMIT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """``phalanx WORDS`` to its end, which is a good one."""
    ended = phalanx(*words, cwd=cwd, limit=limit, **variables)
    assert ended.returncode == 0, ended.stderr
    return ended


def start(*words: str, cwd: Path, out: IO[str] | None = None) -> subprocess.Popen[str]:
    """``phalanx WORDS``, going on in the background; ``out``: for what it says on both streams."""
    return subprocess.Popen(
        [*PHALANX, *words],
        cwd=cwd,
        env=_environment(cwd, {}),
        stdout=out or subprocess.PIPE,
        stderr=out or subprocess.PIPE,
        text=True,
    )


def _environment(cwd: Path, variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PHALANX_RUNS": str(cwd / "runs"), "COLUMNS": "100", **variables}


def last_json(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def until(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    """Wait for ``condition``; an error when it never holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=LIMIT)
