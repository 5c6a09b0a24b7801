"""A worker that compiles nothing does not import torch's compiler, and whoever needs it has it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, torch
from phalanx.sync.state.skip_dynamo_import import COMPILER, StepWithoutCompiler, without_compiler
without_compiler()
weights = torch.ones(2, requires_grad=True)
optimizer = torch.optim.Adam([weights], lr=0.5)

def step(closure=None):
    weights.sum().backward()
    with StepWithoutCompiler(optimizer):
        optimizer.step(closure)
    optimizer.zero_grad(set_to_none=True)
    assert weights.grad is None

def compiles():
    from torch.compiler import is_compiling
    return float(torch._dynamo.config.verbose or is_compiling())

step()
print("step", COMPILER in sys.modules, float(weights[0]) < 1.0)
before = weights.detach().clone()
step(compiles)
print("closure", sys.modules[COMPILER].__file__ is not None)
from torch._dynamo.utils import counters
step()
optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)]})
print("after", bool((weights < before).all()), type(counters).__name__, len(optimizer.param_groups))
marked = getattr(torch.optim.Optimizer.zero_grad.__wrapped__, "__dynamo_disable")
print("marked", hasattr(marked, "_torchdynamo_disable"))
"""


def test_a_step_imports_no_compiler_and_does_not_hide_it() -> None:
    words = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "step False True", "closure True", "after True defaultdict 2", "marked True",
    ]  # fmt: skip
