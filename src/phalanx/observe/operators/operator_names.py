"""Sorts operators by what they compute, so that torch's and TensorFlow's stand side by side.

In this folder, what workers use is of the standard library: other frameworks' have nothing else.
"""

from __future__ import annotations

import functools
import re

GROUPS = (
    "convolution", "matmul", "normalisation", "pooling", "element-wise", "loss", "input",
    "optimizer", "communication", "other",
)  # fmt: skip
(
    CONVOLUTION, MATMUL, NORMALISATION, POOLING, ELEMENTWISE, LOSS, INPUT, OPTIMIZER, COMMUNICATION,
    OTHER,
) = GROUPS  # fmt: skip
FORWARD, BACKWARD = "forward", "backward"
PHASES = (INPUT, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, OTHER)
ALL_REDUCE, UPDATE = "all-reduce", "update"

Sorted = tuple[str, str]
"""The group of an operator, and the kind by which it is matched with those of other systems."""

_TORCH = (
    (r"^c10d|nccl|allreduce|all_?gather", COMMUNICATION, ALL_REDUCE),
    (r"^phalanx::optimizer|^optimizer\.step|multi_tensor_apply", OPTIMIZER, UPDATE),
    (r"^optimizer\.", OPTIMIZER, "zero_grad"),
    (r"conv|winograd|wgrad|dgrad|implicit_gemm", CONVOLUTION, "convolution"),
    (r"(batch|layer|group|instance|rms)_?norm|bn_(fw|bw)", NORMALISATION, "normalisation"),
    (r"cross_?entropy|nll_?loss|log_?softmax|_loss|lossbackward", LOSS, "loss"),
    (r"max_?pool", POOLING, "max-pool"),
    (r"pool", POOLING, "other pooling"),
    (r"addmm|linear|matmul|^b?mm|einsum|attention|gemm|cutlass|^tbackward", MATMUL, "matmul"),
    (r"dropout|bernoulli", ELEMENTWISE, "dropout"),
    (r"relu|threshold|clamp_min", ELEMENTWISE, "relu"),
    (r"softmax", ELEMENTWISE, "softmax"),
    (r"^(add|sub|mul|div|pow|sqrt|exp|tanh|sigmoid|silu|gelu|erf|neg|where|clamp|sum|mean|foreach)"
     r"|elementwise", ELEMENTWISE, ""),
)  # fmt: skip
_TENSORFLOW = (
    (r"Collective|AllReduce|Nccl|^_?(Host)?(Send|Recv)", COMMUNICATION, ALL_REDUCE),
    (r"^Resource\w*Apply|^Assign\w*VariableOp", OPTIMIZER, UPDATE),
    (r"Iterator|Dataset", INPUT, "input"),
    (r"Conv[23]D", CONVOLUTION, "convolution"),
    (r"BatchNorm|LayerNorm", NORMALISATION, "normalisation"),
    (r"CrossEntropy|LogSoftmax", LOSS, "loss"),
    (r"MaxPool", POOLING, "max-pool"),
    (r"Pool", POOLING, "other pooling"),
    (r"MatMul|Einsum", MATMUL, "matmul"),
    (r"^Relu", ELEMENTWISE, "relu"),
    (r"^Softmax", ELEMENTWISE, "softmax"),
    (r"^(Add|Sub|Mul|Div|RealDiv|Pow|Sqrt|Rsqrt|Square|Exp|Tanh|Sigmoid|Neg|Select|Cast|Sum|Mean"
     r"|Max|Min|Random|GreaterEqual)", ELEMENTWISE, ""),
)  # fmt: skip


@functools.cache
def sort_torch(name: str) -> Sorted:
    """Return group and kind of an operator, kernel or range of torch."""
    plain = re.sub(r"^aten::|Backward\d*$", "", name)
    return _sort(re.sub(r"^aten::_*", "", name).lower(), _TORCH, plain)


@functools.cache
def sort_tensorflow(name: str, layer: str) -> Sorted:
    """Return group and kind of an operator of TensorFlow, such as ``Conv2D`` in ``conv2d_1``."""
    if name.startswith("BiasAdd"):  # in torch it is part of the layer's operator
        groups = {"conv": CONVOLUTION, "dens": MATMUL}
        return groups.get(layer.lower()[:4], ELEMENTWISE), "bias"
    if "dropout" in layer.lower():
        return ELEMENTWISE, "dropout"
    return _sort(name, _TENSORFLOW, name)


def _sort(text: str, table: tuple[tuple[str, str, str], ...], name: str) -> Sorted:
    found = ((group, kind or name) for sought, group, kind in table if re.search(sought, text))
    return next(found, (OTHER, name))
