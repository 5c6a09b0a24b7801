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


def test_the_compiler_is_imported_by_those_who_need_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MAKES], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:2] == ["before False", "groups 2"]
    assert "marked" in ended.stdout and "True" in ended.stdout.splitlines()[-1]
