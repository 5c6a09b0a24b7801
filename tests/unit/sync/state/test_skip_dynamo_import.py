"""A worker that compiles nothing does not import torch's compiler."""

from __future__ import annotations

import subprocess
import sys

MAKES = """
import sys, torch
from phalanx.sync.state.skip_dynamo_import import COMPILER, without_compiler
without_compiler()
weights = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.5, momentum=0.9)
weights.sum().backward()
optimizer.zero_grad(set_to_none=True)
assert weights.grad is None
print("before", COMPILER in sys.modules)
import torch._dynamo
optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)]})
optimizer.zero_grad()
print("groups", len(optimizer.param_groups))
marked = getattr(torch.optim.Optimizer.zero_grad.__wrapped__, "__dynamo_disable")
print("marked", marked.__module__, hasattr(marked, "_torchdynamo_disable"))
"""
STEPS = """
import sys, torch
from phalanx.sync.state.skip_dynamo_import import COMPILER, StepWithoutCompiler, without_compiler
without_compiler()
weights = torch.ones(2, requires_grad=True)
optimizer = torch.optim.Adam([weights], lr=0.5)

def step(closure=None):
    weights.grad = torch.ones(2)
    with StepWithoutCompiler(optimizer):
        optimizer.step(closure)

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
print("after", bool((weights < before).all()), type(counters).__name__)
"""


def test_a_step_imports_no_compiler_and_does_not_hide_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = ended.stdout.splitlines()
    assert found == ["step False True", "closure True", "after True defaultdict"]


def test_the_compiler_is_imported_by_those_who_need_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MAKES], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:2] == ["before False", "groups 2"]
    assert "marked" in ended.stdout and "True" in ended.stdout.splitlines()[-1]
