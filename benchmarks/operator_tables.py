"""The tables of ``docs/reference/operators.md``: three systems, operator by operator, beside what
a study published of two (TensorFlow 2.2 and Horovod on Spark, the same model and batches).

    phalanx compare examples/mnist_convnet.py --systems phalanx,torch-ddp,tf-mwms --workers 2 \\
        --batch 96,192,384 --epochs 1 --profile
    python -m benchmarks.operator_tables STUDY
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import fmean

from phalanx.cli.request.find_run import for_report
from phalanx.observe.operators.profiles import OperatorTable, mean_by
from phalanx.report.load import load_study
from phalanx.report.sections.operators import profiled

SYSTEMS = ("phalanx allreduce", "torch-ddp", "tf-mwms")
BATCHES = (96, 192, 384)
# Seconds per epoch, Horovod on Spark / TensorFlow, by batch: tables 5.5 to 5.7 of the study.
PUBLISHED = {
    "Conv2DBackpropFilter": ((22.00, 21.79), (18.17, 16.69), (14.56, 13.13)),
    "Conv2DBackpropInput": ((9.739, 9.963), (8.686, 8.575), (7.071, 6.237)),
    "_FusedConv2D": ((6.456, 9.177), (5.629, 6.021), (5.007, 6.010)),
    "MatMul": ((6.399, 6.250), (4.647, 4.705), (3.352, 3.388)),
    "_FusedMatMul": ((0.763, 0.773), (0.760, 0.742), (0.537, 0.530)),
    "MaxPool": ((0.472, 0.479), (0.360, 0.357), (0.315, 0.313)),
    "MaxPoolGrad": ((1.573, 1.455), (1.535, 1.459), (1.311, 1.538)),
    "ReluGrad": ((2.305, 1.838), (1.961, 1.538), (1.460, 1.294)),
    "RandomUniform": ((0.937, 0.946), (0.799, 0.809), (0.707, 0.732)),
    "Dataset": ((1.132, 0.533), (0.957, 0.364), (0.768, 0.269)),
    "ResourceApplyAdadelta": ((2.842, 2.180), (2.354, 1.100), (1.151, 0.557)),
    "all-reduce": ((0.190, 42.56), (0.101, 22.56), (0.052, 13.61)),
    "sum": ((58.4, 99.9), (49.0, 66.3), (38.4, 48.8)),
}
# Our rows, with the published operators that are the same work.
ROWS = {
    "convolution": ("_FusedConv2D",),
    "convolution backward": ("Conv2DBackpropFilter", "Conv2DBackpropInput"),
    "matmul": ("_FusedMatMul",),
    "matmul backward": ("MatMul",),
    "max-pool": ("MaxPool",),
    "max-pool backward": ("MaxPoolGrad",),
    "relu": (),
    "relu backward": ("ReluGrad",),
    "dropout": ("RandomUniform",),
    "dropout backward": (),
    "loss": (),
    "input": ("Dataset",),
    "update": ("ResourceApplyAdadelta",),
    "all-reduce": ("all-reduce",),
}


def table(batch: int, runs: dict[str, list[OperatorTable]]) -> Iterator[str]:
    """The rows of one batch: published ratios, our ratios, and our milliseconds."""
    at = BATCHES.index(batch)
    steps = {name: fmean(t.step_seconds for t in tables) for name, tables in runs.items()}
    labels = {name: mean_by(tables, "label") for name, tables in runs.items()}
    ours, ddp, tensorflow = SYSTEMS
    yield f"**Global batch {batch}**\n"
    heads = ["operator", "published, Horovod ÷ TensorFlow"]
    heads += ["Phalanx ÷ TensorFlow", "DDP ÷ TensorFlow", *(f"`{name}`, ms" for name in SYSTEMS)]
    yield "| " + " | ".join(heads) + " |"
    yield "|---|---|---|---|---|---|---|"
    rows: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
        "step, or sum of all operators": (("sum",), steps),
        **{
            kind: (names, {name: labels[name].get(kind, 0.0) for name in SYSTEMS})
            for kind, names in ROWS.items()
        },
    }
    for kind, (names, found) in rows.items():
        spark, plain = (sum(PUBLISHED[name][at][i] for name in names) for i in (0, 1))
        base = found[tensorflow]
        published = f"{spark / plain:.3g}" if names else "–"
        known = [found[name] / base if base else 0.0 for name in (ours, ddp)]
        ratios = [f"{ratio:.2f}" if ratio else "–" for ratio in known]
        taken = [f"{float(f'{1000 * s:.3g}'):g}" if (s := found[n]) else "–" for n in SYSTEMS]
        yield "| " + " | ".join([kind, published, *ratios, *taken]) + " |"
    yield ""


def main() -> None:
    found: dict[int, dict[str, list[OperatorTable]]] = {}
    for group, tables in profiled(load_study(for_report(sys.argv[1]))):
        name = group.label.partition(",")[0]
        found.setdefault(group.batch or 0, {})[name] = tables
    for batch, runs in sorted(found.items()):
        print(*table(batch, runs), sep="\n")


if __name__ == "__main__":
    main()
