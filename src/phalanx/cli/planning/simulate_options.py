"""The options of ``simulate`` alone, each said once."""

from __future__ import annotations

from typing import Annotated

import typer

Speeds = Annotated[
    str | None, typer.Option(metavar="F,F,…", help="Speeds of the workers, such as 1,1,0.25.")
]
LinkRate = Annotated[
    str | None, typer.Option("--rate", metavar="RATE", help="Rate of each link, such as 1gbit.")
]
Latency = Annotated[
    str | None, typer.Option(metavar="TIME", help="Latency of a message, such as 0.1ms.")
]
Jitter = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Standard deviation of a step's time, such as 0.1."),
]
Straggler = Annotated[
    list[str] | None,
    typer.Option(metavar="RANK:FACTOR", help="This worker takes FACTOR times as long."),
]
Fail = Annotated[
    list[str] | None,
    typer.Option(metavar="RANK@STEP", help="This worker is lost at its step STEP."),
]
StepSeconds = Annotated[
    str | None,
    typer.Option(
        metavar="TIME[+TIME]",
        help="A worker's step, and what each sample adds, such as 10ms+0.2ms.",
    ),
]
TimeOnly = Annotated[
    bool, typer.Option("--time-only", help="Compute no gradients; up to 10000 workers.")
]
Steps = Annotated[
    int | None, typer.Option(metavar="N", help="With --time-only: steps of each worker.")
]
GradientSize = Annotated[
    str | None,
    typer.Option(
        "--gradient", metavar="SIZE", help="With --time-only: bytes of a gradient, such as 3.4MB."
    ),
]
