"""Sorts operators by what they compute, so that torch's and TensorFlow's stand side by side.

In this folder, what workers use is of the standard library: other frameworks' have nothing else.
"""

from __future__ import annotations

import functools
import re

INPUT = "input"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"
OTHER = "other"
FORWARD, BACKWARD = "forward", "backward"
GROUPS = (
    "convolution", "matmul", "normalisation", "pooling", "element-wise", "loss", INPUT, OPTIMIZER,
    COMMUNICATION, OTHER,
)  # fmt: skip
PHASES = (INPUT, OPTIMIZER, COMMUNICATION)
"""The groups that are phases of a step too; all else is forward, backward or other."""
UPDATE = (OPTIMIZER, "update")
_GROUPS = (
    (r"^phalanx::optimizer|^optimizer\.step|multi_tensor_apply|^(amp_)?(fused|foreach)_\w+_$"
     r"|^resource\w*apply|^assign\w*variableop", *UPDATE),
    (r"^optimizer\.", OPTIMIZER, "zero_grad"),
    (r"^phalanx::input|iterator|dataset|dataloader", INPUT, "input"),
    (r"^(phalanx|c10d)::|^gloo:|nccl|all_?reduce|all_?gather|collective|^_?(host)?(send|recv)",
     COMMUNICATION, "all-reduce"),
    (r"conv|winograd|wgrad|dgrad|implicit_gemm", "convolution", "convolution"),
    (r"(batch|layer|group|instance|rms)_?norm|bn_(fw|bw)", "normalisation", "normalisation"),
    (r"cross_?entropy|nll_?loss|log_?softmax|_loss|lossbackward", "loss", "loss"),
    (r"max_?pool", "pooling", "max-pool"),
    (r"pool", "pooling", "other pooling"),
    (r"addmm|linear|matmul|^b?mm|einsum|attention|gemm|cutlass|^tbackward", "matmul", "matmul"),
    (r"dropout|bernoulli", "element-wise", "dropout"),
    (r"relu|threshold|clamp_min", "element-wise", "relu"),
    (r"softmax", "element-wise", "softmax"),
    (r"^(add|sub|mul|div|realdiv|pow|r?sqrt|square|exp|tanh|sigmoid|silu|gelu|erf|neg|where|select"
     r"|cast|clamp|sum|mean|max|min|random|greaterequal|foreach)|elementwise", "element-wise", ""),
)  # fmt: skip
"""What names have in them, the group, and the kind by which the operator is matched with those of
other systems: ``""`` is its own name."""


@functools.cache
def sort(name: str, layer: str = "") -> tuple[str, str]:
    """Return group and kind of an operator, kernel or range, such as ``Conv2D`` of TensorFlow."""
    if name.startswith("BiasAdd"):  # in torch it is part of the layer's operator
        groups = {"conv": "convolution", "dens": "matmul"}
        return groups.get(layer.lower()[:4], "element-wise"), "bias"
    if "dropout" in layer.lower():
        return "element-wise", "dropout"
    text, plain = re.sub(r"^aten::_*", "", name).lower(), re.sub(r"^aten::|Backward\d*$", "", name)
    found = ((group, kind or plain) for sought, group, kind in _GROUPS if re.search(sought, text))
    return next(found, (OTHER, plain))
