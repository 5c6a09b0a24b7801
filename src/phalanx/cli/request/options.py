"""The options that verbs share, each defined once, and the objects that hold them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

STRATEGY_NAMES = "single, allreduce, async, bsp, ssp, dssp, groups, localsgd, diloco"


def _explain_strategies(ctx: Any, value: str | None) -> str | None:
    """Print the strategies and exit if ``value`` is ``help``, whatever the other options are."""
    if value == "help" and not ctx.resilient_parsing:
        from phalanx.cli.request.strategy_help import explain

        explain(json=bool(getattr(ctx.obj, "json", False)))
        raise typer.Exit
    return value


Script = Annotated[
    Path, typer.Argument(metavar="SCRIPT", help="The training script. Arguments after -- go to it.")
]
Module = Annotated[
    bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")
]
RunName = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run's id, part of it, or folder. Default: newest."),
]
RunNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]…",
        help="A run's id, part of it, or folder; several are compared. Default: newest.",
    ),
]
OtherPool = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The blueprint, if it was moved, or if the run's folder belongs to another user.",
    ),
]
Blueprint = Annotated[Path, typer.Argument(metavar="FILE", help="A blueprint, YAML or JSON.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Where to write it.")]
Json = Annotated[
    bool, typer.Option("--json", help="End stdout with one JSON object; text goes to stderr.")
]
Strategy = Annotated[
    str,
    typer.Option(
        metavar="SPEC",
        callback=_explain_strategies,
        is_eager=True,
        help=f"How workers synchronise: {STRATEGY_NAMES}, or switch:at=0.5. 'help' explains them.",
    ),
]
NewStrategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="SPEC",
        callback=_explain_strategies,
        is_eager=True,
        help="Another strategy than the run's. 'help' explains them.",
    ),
]
Strategies = Annotated[
    str,
    typer.Option(
        "--strategies",
        "--strategy",
        metavar="A,B,C",
        callback=_explain_strategies,
        is_eager=True,
        help="The strategies to compare, separated by commas. 'help' explains them.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Total workers. Default: one per GPU, else per machine."),
]
PoolFile = Annotated[
    Path | None,
    typer.Option("--pool", metavar="FILE", help="The blueprint. Default: this machine alone."),
]
Machines = Annotated[
    str,
    typer.Option(
        metavar="SELECTION",
        help="Which machines: all, cpus, gpus, energy, fastest:N, or names; server:NAME runs a "
        "parameter server and no worker.",
    ),
]
LauncherName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="local (processes), ssh, slurm:OPTIONS of sbatch (partition=gpu,time=1:00:00), "
        "ray:HOST:PORT, spark:URL, or inprocess (threads, to debug). Default: depends on the "
        "machines.",
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="A data folder to copy to every machine once (run.data)."
    ),
]
Profile = Annotated[
    int | None,
    typer.Option(
        "--profile", metavar="[STEPS]", help="Record operator by operator what 20 or so steps do."
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Return once it trains; follow it with phalanx attach.")
]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Epochs, instead of the script's.")]
Batch = Annotated[
    int | None, typer.Option(metavar="N", help="Global batch size, instead of the script's.")
]
Batches = Annotated[
    str | None, typer.Option("--batch", metavar="N,M", help="Global batch sizes, comma-separated.")
]
Repeat = Annotated[int, typer.Option(metavar="N", help="Runs of each; repeat i uses seed + i.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seeds Python, NumPy and torch.")]
PrecisionName = Annotated[
    str, typer.Option(metavar="NAME", help="auto, float32, tf32, bfloat16 or float16.")
]
CompileName = Annotated[
    str, typer.Option("--compile", metavar="MODE", help="off, auto or a mode of torch.compile.")
]
ViewName = Annotated[
    str,
    typer.Option(
        "--view",
        metavar="VIEW",
        help="What a script without Phalanx sees of a batch: whole, or its part. Default: auto.",
    ),
]
CheckSteps = Annotated[
    str,
    typer.Option(
        "--check",
        metavar="N",
        help="First steps of a script without Phalanx to compare with one process, or off; finite: "
        "a gradient that is not finite ends the run.",
    ),
]
LossKind = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="KIND",
        help="How a script without Phalanx reduces a batch: mean or sum. Default: detected.",
    ),
]
Slow = Annotated[
    str | None, typer.Option(metavar="F,F,…", help="Emulate slower workers, such as 1,1,0.25.")
]
Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="RATE", help="Emulate a slower link, such as 100mbit."),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(
        metavar="N",
        help="Every N epochs, 10min, both (1,10min), auto (20 s apart); keep=N: the newest N (3).",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name in the run's id. Default: the script's."),
]
FrameworkName = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="NAME",
        help="Run a torch (DDP, Accelerate, Lightning), tensorflow (tensorflow:worker=2,ps=1 with "
        "its processes) or jax script unchanged; keras: "
        "a tf.distribute script whose model.fit Phalanx distributes (keras-torch, keras-tf, "
        "keras-jax name the backend).",
    ),
]
Systems = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help="Compare systems instead of strategies: phalanx, phalanx-spark, keras-torch, "
        "keras-tf, keras-jax, torch-ddp, tf-mwms, tf-ps (tf-ps:worker=2:ps=2), jax-dp. Their "
        "scripts: NAME.ddp.py, NAME.keras.py, NAME.jax.py, NAME.fit.py (keras-…).",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print exactly what would be started; start nothing.")
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Print what is found in a script without Phalanx; train only one step."
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """The options that ``run`` and ``compare`` share, as typed and in the order of --help."""

    workers: Workers = None
    pool: PoolFile = None
    machines: Machines = "all"
    launcher: LauncherName = "auto"
    epochs: Epochs = None
    batch: Batch = None
    repeat: Repeat = 1
    seed: Seed = 0
    precision: PrecisionName = "float32"
    compile: CompileName = "off"
    view: ViewName = "auto"
    check: CheckSteps = "12"
    loss: LossKind = None
    slow: Slow = None
    rate: Rate = None
    checkpoint_every: CheckpointEvery = "0"
    data: DataFolder = None
    profile: Profile = None
    detach: Detach = False
    name: Name = None
    dry_run: DryRun = False
    json: Json = False


Verb = Callable[..., int]


def expanded(*without: str, **defaults: Any) -> Callable[[Verb], Verb]:
    """Show the parser the fields of a verb's options object as parameters of the verb.

    Fields named in ``without`` are left out; ``defaults`` replace the fields' defaults. A
    parameter of the verb replaces the field that has its name.
    """

    def decorate(verb: Verb) -> Verb:
        own, hints = inspect.signature(verb).parameters, get_type_hints(verb, include_extras=True)
        holder = next(name for name in own if is_dataclass(hints[name]))
        kind: Any = hints[holder]
        shared = {f.name: f.default for f in fields(kind) if f.name not in without} | defaults
        shown: dict[str, Any] = {}
        for name, parameter in own.items():
            shown |= shared if name == holder else {name: parameter.default}
        hints = get_type_hints(kind, include_extras=True) | hints

        @wraps(verb)
        def call(**given: Any) -> int:
            options = kind(**{name: given.pop(name) for name in shared if name not in own})
            return verb(**given, **{holder: options})

        parameters = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name]
            )
            for name, default in shown.items()
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {name: hints[name] for name in shown}
        return call

    return decorate
