"""Sorts operators by what they compute, so that those of torch and of TensorFlow stand side by side.

Only the standard library is used: workers of other frameworks have nothing else.
"""

from __future__ import annotations

import functools
import re

CONVOLUTION, MATMUL, NORMALISATION = "convolution", "matmul", "normalisation"
POOLING, ELEMENTWISE, LOSS = "pooling", "element-wise", "loss"
INPUT, OPTIMIZER, COMMUNICATION, OTHER = "input", "optimizer", "communication", "other"
GROUPS = (
    CONVOLUTION, MATMUL, NORMALISATION, POOLING, ELEMENTWISE, LOSS, INPUT, OPTIMIZER,
    COMMUNICATION, OTHER,
)  # fmt: skip
ALL_REDUCE = "all-reduce"
FORWARD, BACKWARD = "forward", "backward"
PHASES = (INPUT, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, OTHER)

Sorted = tuple[str, str]
"""The group of an operator, and the kind by which it is matched with those of other systems."""

_TORCH = (
    (r"^phalanx::(exchange|sum|gather)|^c10d|^gloo:|nccl|^mpi:|allreduce|all_?gather",
     COMMUNICATION, ALL_REDUCE),
    (r"^phalanx::optimizer|^optimizer\.step|multi_tensor_apply", OPTIMIZER, "update"),
    (r"^optimizer\.zero_grad", OPTIMIZER, "zero_grad"),
    (r"^phalanx::input|dataloader|pin_memory", INPUT, "input"),
    (r"conv|winograd|wgrad|dgrad|implicit_gemm", CONVOLUTION, "convolution"),
    (r"(batch|layer|group|instance|rms)_?norm|bn_(fw|bw)", NORMALISATION, "normalisation"),
    (r"cross_?entropy|nll_?loss|log_?softmax|_loss|lossbackward", LOSS, "loss"),
    (r"max_?pool", POOLING, "max-pool"),
    (r"pool", POOLING, "other pooling"),
    (r"addmm|linear|matmul|^b?mm|baddbmm|einsum|attention|gemm|cutlass|^tbackward",
     MATMUL, "matmul"),
    (r"dropout|bernoulli", ELEMENTWISE, "dropout"),
    (r"relu|threshold|clamp_min", ELEMENTWISE, "relu"),
    (r"softmax", ELEMENTWISE, "softmax"),
    (r"^(add|sub|mul|div|pow|sqrt|exp|tanh|sigmoid|silu|gelu|erf|neg|where|clamp|sum|mean|foreach)"
     r"|elementwise", ELEMENTWISE, ""),
)  # fmt: skip
_TENSORFLOW = (
    (r"Collective|AllReduce|Nccl|ScopedAllocator|^_?(Send|Recv|HostSend|HostRecv)",
     COMMUNICATION, ALL_REDUCE),
    (r"^Resource\w*Apply|^Assign\w*VariableOp", OPTIMIZER, "update"),
    (r"Iterator|Dataset|Prefetch|^Gather", INPUT, "input"),
    (r"Conv[23]D", CONVOLUTION, "convolution"),
    (r"BatchNorm|LayerNorm", NORMALISATION, "normalisation"),
    (r"CrossEntropy|LogSoftmax", LOSS, "loss"),
    (r"MaxPool", POOLING, "max-pool"),
    (r"Pool", POOLING, "other pooling"),
    (r"MatMul|Einsum", MATMUL, "matmul"),
    (r"Random|GreaterEqual", ELEMENTWISE, "dropout"),
    (r"^Relu", ELEMENTWISE, "relu"),
    (r"^Softmax", ELEMENTWISE, "softmax"),
    (r"^(Add|Sub|Mul|Div|RealDiv|Pow|Sqrt|Rsqrt|Square|Exp|Tanh|Sigmoid|Neg|Select|Cast|Sum|Mean"
     r"|BiasAdd|_FusedCwise|Max|Min)", ELEMENTWISE, ""),
)  # fmt: skip


@functools.cache
def sort_torch(name: str) -> Sorted:
    """Return group and kind of an operator, kernel or range of torch."""
    return _sort(re.sub(r"^aten::_*", "", name).lower(), _TORCH, _plain(name))


def _plain(name: str) -> str:
    return re.sub(r"^aten::|Backward\d*$", "", name)


@functools.cache
def sort_tensorflow(kind: str, layer: str) -> Sorted:
    """Return group and kind of an operator of TensorFlow, such as ``Conv2D`` in ``conv2d_1``."""
    if kind.startswith("BiasAdd"):  # torch adds it in the operator itself
        of_layer = {"conv": CONVOLUTION, "dens": MATMUL}.get(layer.lower()[:4], ELEMENTWISE)
        return of_layer, "bias"
    if "dropout" in layer.lower():
        return ELEMENTWISE, "dropout"
    return _sort(kind, _TENSORFLOW, kind)


def _sort(text: str, table: tuple[tuple[str, str, str], ...], name: str) -> Sorted:
    for pattern, group, kind in table:
        if re.search(pattern, text):
            return group, kind or name
    return OTHER, name
