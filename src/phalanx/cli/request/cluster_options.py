"""The options of clusters that have a manager of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.core.errors import InputError

SlurmOptions = Annotated[
    str | None,
    typer.Option(
        "--slurm", metavar="A=B,…", help="Options for sbatch, such as partition=gpu,time=1:00:00."
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="A Ray cluster, or auto. Default: one of its own here."),
]
SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's, such as spark://HOST:7077; implies --launcher spark.",
    ),
]


def check_cluster(launcher: str, slurm: str | None, ray: str | None, spark: str | None) -> None:
    """Each goes with its own launcher. A master of Spark implies it: see ``compare --systems``."""
    for needed, option, given in (
        ("slurm", "--slurm", slurm), ("ray", "--ray-address", ray), ("spark", "--master", spark),
    ):  # fmt: skip
        implied = needed == "spark" and launcher == "auto"
        if given is not None and launcher != needed and not implied:
            raise InputError(f"{option} needs --launcher {needed}", f"Add --launcher {needed}.")
