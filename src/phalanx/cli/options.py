"""The options that verbs share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Script = Annotated[
    Path,
    typer.Argument(metavar="SCRIPT", help="The training script. Words after -- go to it."),
]
RunName = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Its id, a part of it, or its folder. Default: newest."),
]
Json = Annotated[
    bool, typer.Option("--json", help="End stdout with one JSON object; text goes to stderr.")
]
Strategy = Annotated[
    str, typer.Option(metavar="SPEC", help="How workers agree, such as async or switch:at=0.5.")
]
Strategies = Annotated[
    str, typer.Option(metavar="A,B,C", help="The strategies to compare, separated by commas.")
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Workers in all. Default: one per GPU, else per machine."),
]
PoolFile = Annotated[
    Path | None,
    typer.Option("--pool", metavar="FILE", help="The blueprint. Default: this machine alone."),
]
Machines = Annotated[
    str,
    typer.Option(
        metavar="SELECTION", help="Who takes part: all, cpus, gpus, energy, fastest:N, or names."
    ),
]
LauncherName = Annotated[
    str,
    typer.Option(metavar="NAME", help="local (processes) or inprocess (threads, to debug)."),
]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Instead of the script's number.")]
Batch = Annotated[
    int | None, typer.Option(metavar="N", help="Global batch, instead of the script's.")
]
Batches = Annotated[
    str | None, typer.Option("--batch", metavar="N,M", help="Global batches, separated by commas.")
]
BatchPerWorker = Annotated[
    int | None, typer.Option(metavar="N", help="The batch of each worker, instead of --batch.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seeds Python, NumPy and torch.")]
PrecisionName = Annotated[
    str, typer.Option("--precision", metavar="NAME", help="auto, float32 or bfloat16.")
]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="Part of the run's id. Default: the script's.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print exactly what would be started; start nothing.")
]
