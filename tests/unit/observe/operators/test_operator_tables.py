"""Tables of operators from traces, made ones with known seconds and a real one of torch."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from phalanx.observe.operators.operator_names import sort
from phalanx.observe.operators.profiles import OperatorTable, mean_by
from phalanx.observe.operators.step_window import StepWindow, TorchRecorder
from phalanx.observe.operators.trace_table import STEP, Event, table_of_tensorflow, table_of_torch

EVALUATE = "autograd::engine::evaluate_function: "


def event(name: str, start: float, dur: float, cat: str = "cpu_op", **args: Any) -> Event:
    """An event of torch; times are in milliseconds."""
    found = {"ph": "X", "cat": cat, "name": name, "ts": 1e3 * start, "dur": 1e3 * dur}
    return {**found, "tid": args.pop("tid", 1), "args": args}


def step_at(at: float, number: int) -> list[Event]:
    """A step of 10 ms, of which the script takes 1."""
    ranged = "user_annotation"
    return [
        event(STEP, at, 10, ranged),
        event("phalanx::input", at, 1, ranged),
        event("aten::index_select", at + 0.2, 0.5),
        event("layer::0 Conv2d", at + 1, 2, ranged),
        event("aten::conv2d", at + 1, 2, **{"Sequence number": number, "External id": number}),
        event("aten::convolution", at + 1.2, 1.5, **{"Sequence number": number}),
        event(EVALUATE + "ConvolutionBackward0", at + 3, 2.5, **{"Sequence number": number}),
        event("aten::convolution_backward", at + 3.1, 2),
        event(EVALUATE + "torch::autograd::AccumulateGrad", at + 5.5, 0.2),
        event("phalanx::exchange", at + 6, 3, ranged),
        event("phalanx::optimizer", at + 7, 1, ranged),
        event("aten::add_", at + 7, 0.9),
    ]


def trace(*more: Event, long: float = 0.0) -> dict[str, Any]:
    """Six steps: the first and the last do not count, nor the third if it has an evaluation."""
    events = [e for i in range(6) for e in step_at(100 * i, i + 1)]
    if long:
        next(e for e in events if e["name"] == STEP and e["ts"] == 2e5)["dur"] = 1e3 * long
    return {"traceEvents": [*events, *more, {"ph": "M", "name": "process_name"}]}


def read(table: dict[str, Any]) -> tuple[OperatorTable, dict[str, Any]]:
    found = msgspec.convert({"memory_bytes": 1, **table}, OperatorTable)
    return found, {row.operator: row for row in found.operators}


def test_each_operator_has_its_phase_its_layer_and_its_seconds() -> None:
    table, rows = read(table_of_torch(trace(long=80)))
    assert (table.steps, table.step_seconds) == (3, pytest.approx(0.01))
    assert table.device == "cpu"
    forward, backward = rows["aten::conv2d"], rows["ConvolutionBackward0"]
    assert (forward.phase, forward.layer) == ("forward", "0 Conv2d")
    assert (backward.phase, backward.layer) == ("backward", "0 Conv2d")
    assert rows["AccumulateGrad"].layer == ""
    assert "aten::convolution" not in rows  # it is how the first is computed
    assert forward.self_seconds == pytest.approx(0.002)
    assert rows["phalanx::exchange"].self_seconds == pytest.approx(0.002)
    assert mean_by([table], "group") == pytest.approx(
        {
            "convolution": 0.0045,
            "input": 0.001,
            "communication": 0.002,
            "optimizer": 0.001,
            "other": 0.0002,
        }
    )
    assert mean_by([table, table], "label")["convolution backward"] == pytest.approx(0.0025)
    assert table.python_seconds == pytest.approx(0.0013)


def test_kernels_belong_to_the_operators_that_started_them() -> None:
    kernels = [
        event("sgemm", 102, 4, "kernel", tid=7, **{"External id": 2}),
        event("a_graph_of_cutlass_gemms", 107, 1, "kernel", tid=7),
        event("before_any_step_that_counts", 1, 1, "kernel", tid=7),
    ]
    table, rows = read(table_of_torch(trace(*kernels)))
    assert table.device == "cuda"
    assert rows["aten::conv2d"].device_seconds == pytest.approx(0.001)  # of four steps
    assert rows["a_graph_of_cutlass_gemms"].group == "matmul"
    assert len([row for row in rows.values() if row.device_seconds]) == 2
    # Kernels are compared; waiting is the host's.
    groups = mean_by([table], "group")
    assert groups["convolution"] == pytest.approx(0.001)
    assert groups["communication"] == pytest.approx(0.002)


def test_gloo_sends_while_another_thread_computes() -> None:
    sends = [event("gloo:all_reduce", 100 * i + 3, 4, "cpu_op", tid=2) for i in range(6)]
    for events in (plain := trace(*sends))["traceEvents"]:
        events["name"] = events["name"].replace("phalanx::exchange", "rest of the script")
    _, rows = read(table_of_torch(plain))
    assert rows["gloo:all_reduce"].self_seconds == pytest.approx(0.004)


def test_operators_of_tensorflow() -> None:
    model = "while/body/_1/while/sequential/"
    names = {
        STEP: 20.0,
        f"{model}conv2d/Relu:_MklNativeFusedConv2D": 2.0,
        "while/body/_1/gradient_tape/while/sequential/conv2d/Conv2D/Conv2DBackpropFilter:"
        "Conv2DBackpropFilter": 4.0,
        "while/body/_1/while/Adadelta/update_0/mul_1:Mul": 1.0,
        "while/body/_1/while/Adadelta/CollectiveReduceV2:CollectiveReduceV2": 6.0,
        "IteratorGetNextOp::DoCompute": 3.0,
        "ExecutorState::Process": 19.0,
    }
    events = [event(n, 100 * i, dur) for i in range(4) for n, dur in names.items()]
    table, rows = read(table_of_tensorflow(events, each=10))
    assert (table.steps, table.step_seconds) == (20, pytest.approx(0.002))
    found = {n: (r.group, r.phase, r.layer, round(1e4 * r.self_seconds)) for n, r in rows.items()}
    assert found == {
        "FusedConv2D": ("convolution", "forward", "conv2d", 2),
        "Conv2DBackpropFilter": ("convolution", "backward", "conv2d", 4),
        "Mul": ("optimizer", "optimizer", "", 1),
        "CollectiveReduceV2": ("communication", "communication", "", 6),
        "IteratorGetNext": ("input", "input", "", 3),
    }


@pytest.mark.parametrize(
    ("torchs", "tensorflows", "group"),
    [
        ("aten::conv2d", "Conv2D", "convolution"),
        ("ConvolutionBackward0", "Conv2DBackpropInput", "convolution"),
        ("aten::linear", "MatMul", "matmul"),
        ("AddmmBackward0", "FusedMatMul", "matmul"),
        ("MaxPool2DWithIndicesBackward0", "MaxPoolGrad", "pooling"),
        ("ReluBackward0", "ReluGrad", "element-wise"),
        ("aten::cross_entropy_loss", "SparseSoftmaxCrossEntropyWithLogits", "loss"),
        ("aten::batch_norm", "FusedBatchNormGradV3", "normalisation"),
        ("Optimizer.step#Adadelta.step", "ResourceApplyAdadelta", "optimizer"),
        ("aten::_fused_adamw_", "ResourceApplyAdam", "optimizer"),
    ],
)
def test_operators_of_both_systems_are_matched(torchs: str, tensorflows: str, group: str) -> None:
    assert sort(torchs) == sort(tensorflows, "any")
    assert sort(torchs)[0] == group


def test_a_real_window_of_torch(tmp_path: Path) -> None:
    table, traced = (
        tmp_path / "profiles" / "rank-0.json",
        tmp_path / "profiles" / "rank-0.trace.json.gz",
    )
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    window = StepWindow(TorchRecorder(torch), table, steps=3, first=2)
    plain = nn.Module.__call__
    for step in range(12):
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        window.stepped()
        assert table.exists() == (step >= 5)
    window.end()
    found = msgspec.json.decode(table.read_bytes(), type=OperatorTable)
    assert 0 < found.steps <= 3
    assert 0 < sum(row.self_seconds for row in found.operators) <= found.step_seconds
    assert {"0 Linear", "1 ReLU", "2 Linear"} <= set(mean_by([found], "layer"))
    backward = {row.layer for row in found.operators if row.operator == "AddmmBackward0"}
    assert backward == {"0 Linear", "2 Linear"}
    names = {e["name"] for e in json.loads(gzip.decompress(traced.read_bytes()))["traceEvents"]}
    assert {STEP, "layer::0 Linear", "aten::addmm"} <= names
    assert nn.Module.__call__ is plain


class Broken(TorchRecorder):
    def start(self) -> None:
        raise RuntimeError("another profiler runs")


def test_training_goes_on_without_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (3, 30):
        window = StepWindow(Broken(torch), tmp_path / "table", steps=5)
        for _ in range(steps):
            window.stepped()
        window.end()
    few, broken = capsys.readouterr().err.splitlines()
    assert "there were 3 steps, and 10 go first" in few
    assert "another profiler runs" in broken
    assert not list(tmp_path.iterdir())
