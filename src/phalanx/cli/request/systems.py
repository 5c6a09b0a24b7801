"""Other systems and frameworks: their options, and the jobs made from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import typer

from phalanx.cli.output import Output
from phalanx.cli.request.request import Request
from phalanx.core.errors import InputError, PhalanxError
from phalanx.core.files import write_whole
from phalanx.core.registry import did_you_mean
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import ESTIMATOR, KERAS_SYSTEMS, OUR_SYSTEMS, OURS, SPARK_SYSTEM
from phalanx.core.spec import parse_specs
from phalanx.launch import launcher
from phalanx.launch.frameworks.framework import (
    FRAMEWORKS,
    JAX,
    KERAS_NAMES,
    MIRRORED,
    PARAMETER_SERVER,
    SERVER,
    SPARK,
    TENSORFLOW,
    TORCH,
    Framework,
)
from phalanx.launch.frameworks.peer_environments import (
    JAX_PACKAGES,
    TENSORFLOW_PACKAGES,
    TFDS_PACKAGES,
    environment_for,
    peer_of,
    sibling_of,
)
from phalanx.launch.frameworks.seating import plan_for, read_roles
from phalanx.launch.frameworks.tensorflow_scripts import (
    LEGACY_KERAS,
    needs_legacy_keras,
    system_of,
    unprepared,
)
from phalanx.launch.launcher import Job
from phalanx.launch.run.controller import RunOutcome
from phalanx.launch.script.script_check import check_script, starts_no_group, uses_keras
from phalanx.observe.summary.summary import Summary


@dataclass(frozen=True)
class Wanted:
    """The rows of ``compare --systems``: our strategies, and other systems with their scripts."""

    systems: Sequence[str]
    strategies: Sequence[str]
    """The strategies under which Phalanx itself trains."""
    scripts: Mapping[str, Path] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)
    """How many processes of each kind TensorFlow's systems have."""


def read_framework(ctx: typer.Context, asked: str | None, script: Path) -> Framework | None:
    """Read ``--framework``, with a TensorFlow script's processes: ``tensorflow:worker=2,ps=1``.

    If no processes are given, the kind of TensorFlow script is read from its source.
    """
    name, colon, roles = (asked or "").partition(":")
    if asked is not None and name not in (*FRAMEWORKS, *KERAS_NAMES):
        raise InputError(
            f"unknown framework '{name}'", did_you_mean(name, [*FRAMEWORKS, *KERAS_SYSTEMS])
        )
    if colon and name != TENSORFLOW:
        raise InputError(
            f"--framework {asked}: only TensorFlow's scripts have roles",
            "For example: --framework tensorflow:worker=2,ps=1",
        )
    _check_profiled(ctx, name)
    if asked is None or name in KERAS_NAMES:
        return None

    if ctx.params.get("strategy") != "auto":
        _refuse(ctx, "strategy", "its script synchronises the workers itself")
    for option in ("slow", "rate", "precision", "compile", "checkpoint_every"):
        _refuse(ctx, option, "only Phalanx's training loop supports it")
    if name == TORCH:
        return Framework(name=name, system=TORCH)
    if name == JAX:
        return Framework(name=name, system=JAX, requirements=list(JAX_PACKAGES))
    found = _tensorflow(TENSORFLOW, roles if colon else None, script)
    _check_profiled(ctx, found.system)
    return found


def _tensorflow(name: str, text: str | None, script: Path) -> Framework:
    source = script.read_bytes() if script.is_file() else b""
    roles = read_roles(text) if text is not None else {}
    system = system_of(source)
    if roles:
        system = PARAMETER_SERVER if SERVER in roles else MIRRORED
    if system == PARAMETER_SERVER and roles:
        roles = {"chief": 1, **roles}
    more = TFDS_PACKAGES if b"tensorflow_datasets" in source else ()
    legacy = LEGACY_KERAS not in os.environ and needs_legacy_keras(source)
    return Framework(
        name=name, system=system, roles=roles, requirements=[*TENSORFLOW_PACKAGES, *more],
        variables={LEGACY_KERAS: "1"} if legacy else {},
    )  # fmt: skip


def _check_profiled(ctx: typer.Context, *systems: str) -> None:
    found = {JAX, "jax-dp", "keras-jax", "keras-tf", "tf-ps"}.intersection(systems)
    if found and ctx.params.get("profile"):
        raise InputError(
            f"--profile cannot look into {', '.join(sorted(found))}",
            "It can into torch, tensorflow with MultiWorkerMirroredStrategy, and keras-torch.",
        )


def _refuse(ctx: typer.Context, option: str, why: str) -> None:
    shown = "--" + option.replace("_", "-")
    source = ctx.get_parameter_source(option)
    if source is not None and source.name == "COMMANDLINE":
        raise InputError(f"{shown} cannot be used with another framework: {why}", "Leave it out.")


def read_systems(
    ctx: typer.Context, systems: str | None, strategies: str, script: Path
) -> Wanted | None:
    """Read ``--systems``, and check that the script of every system exists."""
    if systems is None:
        return None
    pairs = [part.strip().partition(":") for part in systems.split(",")]
    names, roles = [name for name, _, _ in pairs], dict[str, int]()
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--systems has '{twice}' twice", "To run each again: --repeat N")
    for name, colon, text in pairs:
        if colon and name != PARAMETER_SERVER:
            raise InputError(
                f"'{name}' in --systems takes nothing after ':'",
                f"Only {PARAMETER_SERVER} does: --systems {OURS},{PARAMETER_SERVER}:worker=2:ps=2",
            )
        if colon:
            roles = read_roles(text.replace(":", ","))
            if SERVER not in roles:
                raise InputError(
                    f"--systems {systems} names no {SERVER}",
                    f"For example: {PARAMETER_SERVER}:worker=2:ps=2",
                )
    _check_profiled(ctx, *names)
    if set(names) - {*OUR_SYSTEMS}:
        for option in ("slow", "rate", "precision", "compile"):
            _refuse(ctx, option, "other systems do not support it")
    found = {
        name: check_script(_script_for(name, script), joins=False)
        for name in names
        if name not in (OURS, SPARK_SYSTEM)
    }
    source = ctx.get_parameter_source("strategies")
    chosen = source is not None and source.name == "COMMANDLINE"
    ours = [spec.text for spec in parse_specs(strategies)] if chosen else ["allreduce"]
    return Wanted(names, ours, found, roles)


def _script_for(system: str, script: Path) -> Path:
    """Return the system's sibling script; Keras' backends train a Keras script itself."""
    peer = peer_of(system)
    if system in KERAS_SYSTEMS and script.is_file() and uses_keras(script):
        return script
    return sibling_of(script, peer)


def framework_of(system: str, roles: Mapping[str, int]) -> Framework:
    peer = peer_of(system)
    mine = {"chief": 1, **roles} if system == PARAMETER_SERVER and roles else {}
    return Framework(
        name=peer.framework, system=peer.system, roles=mine, requirements=list(peer.requirements)
    )


def spark_request(request: Request, system: str, systems: Sequence[str]) -> Request:
    """Return a system's request: beside the system on Spark, others do not use ``spark:URL``."""
    asked, by_spark = request.options.launcher, request.launcher == "spark"
    if system == SPARK_SYSTEM:
        asked = asked if by_spark else "spark"
    elif by_spark and SPARK_SYSTEM in systems:
        asked = "auto"
    return replace(request, options=replace(request.options, launcher=asked))


def framework_job(
    request: Request, framework: Framework, script: Path, batch: int | None, *, repeat: int = 0
) -> Job:
    """Return the job of another framework's script on the same machines, with as many workers."""
    if request.launcher == "inprocess":
        raise InputError(
            "--launcher inprocess cannot run another framework's script", "Use --launcher local."
        )
    job = request.job("allreduce", batch, repeat=repeat)
    asked = request.options.workers
    if framework.name == SPARK:  # one process, which asks Spark for the workers
        variables = {ESTIMATOR: str(asked or 1)}
        framework = msgspec.structs.replace(framework, variables=variables)
    elif framework.is_alone and asked not in (None, 1):
        raise InputError(
            f"--workers {asked}, but the script's strategy of TensorFlow is one process",
            "Leave --workers out; or use MultiWorkerMirroredStrategy, or --framework keras.",
        )
    framework = msgspec.structs.replace(framework, servers=len(request.servers))
    if framework.servers and framework.roles.get(SERVER, framework.servers) != framework.servers:
        named = f"--machines has {framework.servers} servers, but --framework another number"
        raise InputError(named, f"Give {SERVER}={framework.servers}.")
    total = sum(framework.roles.values()) or asked
    if framework.roles and asked not in (None, total, framework.roles.get("worker")):
        raise InputError(
            f"--workers {asked} does not match the script's roles", "Give one of them."
        )
    plan = plan_for(
        [*request.machines, *request.servers],
        framework,
        asked,
        strategy="allreduce",
        selection=request.options.machines,
        batch=batch,
        servers=[machine.name for machine in request.servers],
    )
    named = job.settings.strategy if framework.name == SPARK else framework.system
    settings = msgspec.structs.replace(
        job.settings, strategy=named, balance="off", checkpoint_epochs=0
    )
    return replace(job, script=script, settings=settings, plan=plan, framework=framework)


def ready(job: Job, out: Output) -> Job:
    """Return the job with its framework's environment on this machine, which is made if missing."""
    in_torch = job.framework is not None and job.framework.name == TORCH
    if in_torch and job.plan.workers > 1 and starts_no_group(job.script):
        out.note(
            f"warning: {job.script.name} does not use torch.distributed, so each of the "
            f"{job.plan.workers} workers trains the whole model by itself. Without --framework "
            "torch, Phalanx shares the training out"
        )
    if job.framework is not None and LEGACY_KERAS in job.framework.variables:
        out.note(
            "note: tf.keras is legacy Keras here (TF_USE_LEGACY_KERAS=1): Keras 3 cannot train "
            "under this strategy"
        )
    if job.framework is not None and set(TFDS_PACKAGES) <= set(job.framework.requirements):
        folder, missing = unprepared(job.script.read_bytes(), job.settings.data)
        for name in missing:
            out.note(
                f"warning: {folder} has no prepared data set {name}, so tensorflow_datasets "
                "downloads it on every machine; without a network it tries for minutes. Prepare it "
                f"where there is one, tfds.load('{name}', data_dir=DIR), and give --data DIR"
            )
    if job.framework is None or job.launcher != "local":
        return job
    python = environment_for(job.framework, out.say)
    return replace(job, framework=msgspec.structs.replace(job.framework, python=str(python)))


def cannot_run(job: Job, paths: RunPaths, error: PhalanxError) -> RunOutcome:
    """Return the outcome of a run that could not start: its row in the report gives the reason."""
    summary = Summary(run=paths.id, status="failed", strategy=job.settings.strategy)
    summary.system = launcher.system_of(job)
    summary.workers, summary.batch = job.plan.workers, job.settings.batch
    write_whole(paths.summary, summary.to_json() + "\n")
    return RunOutcome(summary, error, error.exit_code)
