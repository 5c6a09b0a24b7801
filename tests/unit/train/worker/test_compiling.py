"""``--compile``: what runs compiled, what does not, and which of both is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phalanx.core.settings import CompileMode
from phalanx.train.worker import compiling
from phalanx.train.worker.compiling import BLOCK, SETTLED, Compiled, compile_models

CPU = torch.device("cpu")
_compile = torch.compile


class Backend:
    """Counts what it compiles and what runs compiled."""

    def __init__(self, fails: bool = False) -> None:
        self.compiled = self.ran = 0
        self._fails = fails

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        if self._fails:
            raise RuntimeError("no")
        self.compiled += 1

        def run(*values: Any) -> Any:
            self.ran += 1
            return graph.forward(*values)

        return run


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.compile, compiling.perf_counter = _compile, perf_counter
    torch._dynamo.reset()


def _model(
    mode: CompileMode, backend: Backend, *times: float
) -> tuple[nn.Module, list[str], Callable[[int], Tensor]]:
    torch.manual_seed(0)
    model, said = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), list[str]()
    compiling.perf_counter = iter(times).__next__ if times else (lambda: 0.0)  # type: ignore[assignment]
    torch.compile = lambda model, **_: _compile(model, backend=backend, dynamic=False)  # type: ignore[assignment]
    model._compiled_call_impl = Compiled(model, mode, CPU, said.append)
    return model, said, lambda rows: model(torch.ones(rows, 4))


def test_only_full_batches_of_a_training_run_compiled() -> None:
    backend = Backend()
    model, _, call = _model("default", backend)
    for _ in range(SETTLED + 3):
        call(8)
    assert (backend.compiled, backend.ran) == (1, 3)
    call(5)  # a short last batch
    model.eval()
    call(8)
    model.train()
    with torch.no_grad():
        call(8)
    assert (backend.compiled, backend.ran) == (1, 3)
    call(8)
    assert (backend.compiled, backend.ran) == (1, 4)


def test_it_computes_the_same() -> None:
    backend = Backend()
    model, _, call = _model("default", backend)
    wanted = call(8)
    wanted.sum().backward()
    gradients = [p.grad.tolist() for p in model.parameters() if p.grad is not None]
    for _ in range(SETTLED + 1):
        model.zero_grad()
        found = call(8)
        found.sum().backward()
    assert backend.ran
    assert torch.equal(found, wanted)
    assert [p.grad.tolist() for p in model.parameters() if p.grad is not None] == gradients


def test_what_cannot_be_compiled_runs_as_it_is() -> None:
    _, said, call = _model("default", Backend(fails=True))
    results = [call(8) for _ in range(SETTLED + 3)]
    assert all(torch.equal(result, results[0]) for result in results)
    assert len(said) == 1 and said[0].startswith("torch.compile failed")


@pytest.mark.parametrize(("compiled", "kept"), [(0.5, True), (1.5, False)])
def test_auto_keeps_the_faster(compiled: float, kept: bool) -> None:
    backend = Backend()
    times = [0.0, BLOCK * 1.0, 100.0, 103.0, 200.0, 200.0 + BLOCK * compiled]
    _, said, call = _model("auto", backend, *times)
    for _ in range(3 * SETTLED + 2 * BLOCK + 4):
        call(8)
    ran = backend.ran
    call(8)
    assert (backend.ran > ran) is kept
    assert len(said) == 1
    assert ("compiling took 3.00 s" if kept else "stays uncompiled") in said[0]


def test_a_model_that_the_script_compiles_is_left_alone() -> None:
    model, said = nn.Linear(2, 2), list[str]()
    model.compile(backend="eager")
    before = model._compiled_call_impl
    compile_models([model], "default", CPU, said.append)
    assert model._compiled_call_impl is before
    assert "the script compiles it" in said[0]
