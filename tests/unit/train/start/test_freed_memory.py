"""What a step frees is there for the next one."""

from __future__ import annotations

import os

import pytest
from commands import python

SCRIPT = """
import ctypes, resource
from phalanx.train.start.environment import keep_freed_memory
import torch

ctypes.CDLL(None).mallopt(-3, 1 << 17)  # every block above 128 kB is given back
keep_freed_memory()
torch.set_num_threads(1)
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(3 << 20) for _ in range(4)]  # of 12 MB
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(**variables: str) -> int:
    plain = {n: v for n, v in os.environ.items() if not n.startswith("MALLOC_")}
    return int(python("-c", SCRIPT, env={**plain, **variables}, check=True).stdout)


@pytest.mark.timeout(120)
def test_pages_are_not_asked_for_again_unless_the_user_has_it_so() -> None:
    assert _faults() < 1_000 < 10_000 < _faults(MALLOC_TOP_PAD_="131072")
