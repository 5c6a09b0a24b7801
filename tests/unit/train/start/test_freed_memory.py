"""What a step frees is there for the next one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, sys
from phalanx.train.start.environment import keep_freed_memory
import torch

ctypes.CDLL(None).mallopt(-3, 1 << 17)  # every block above 128 kB is given back
if sys.argv[1] == "kept":
    keep_freed_memory()
torch.set_num_threads(1)
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(3 << 20) for _ in range(4)]  # of 12 MB
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(kind: str, **variables: str) -> int:
    plain = {n: v for n, v in os.environ.items() if not n.startswith("MALLOC_")}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind],
        env={**plain, **variables}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return int(ended.stdout)


@pytest.mark.timeout(120)
def test_pages_are_not_asked_for_again() -> None:
    assert _faults("kept") < 1_000 < 10_000 < _faults("given back")


@pytest.mark.timeout(120)
def test_what_a_user_has_set_stays() -> None:
    assert _faults("kept", MALLOC_TOP_PAD_="131072") > 10_000
