"""The user's request: options that are checked before anything starts, and the jobs from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from phalanx.cli.invocation import Invocation
from phalanx.cli.request import values
from phalanx.cli.request.options import RunOptions
from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.run_folder.run_paths import runs_home
from phalanx.core.script.packages import module_file
from phalanx.core.script.weight_writes import may_write_weights
from phalanx.core.settings import (
    COMPILE_MODES,
    KERAS_SYSTEMS,
    LOSSES,
    PRECISIONS,
    VIEWS,
    CompileMode,
    LossKind,
    Precision,
    RunSettings,
    View,
)
from phalanx.core.spec import AUTO_SWITCH, parse_spec
from phalanx.launch.launcher import Fleet, Job
from phalanx.launch.script.script_check import check_script, is_adopted, uses_keras
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.select import select
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.here import as_measured, this_machine
from phalanx.pool.machine import Machine, Pool
from phalanx.pool.measured import read_probe

MOST_SEED = 2**32
SERVES = "server:"
"""The prefix of a machine's name if it runs a parameter server and no worker."""


@dataclass(frozen=True)
class Request:
    """Checked options, with the machines they select."""

    options: RunOptions
    script: Path
    words: tuple[str, ...]
    """The script's arguments, which stand after ``--``."""
    command: list[str]
    machines: list[Machine]
    pool: Pool
    module: str | None
    """The script's name as a module, if ``-m`` was given."""
    adopt: bool
    """Whether the script does not call Phalanx, and is adopted as it is."""
    slow: tuple[float, ...]
    rate: float | None
    checkpoints: values.CheckpointTimes
    servers: Sequence[Machine] = ()
    """Machines that run a parameter server and no worker."""
    keras: str | None = None
    """The name in ``KERAS_SYSTEMS`` that was asked for, if any."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.pool.warnings

    @property
    def workers(self) -> int:
        """How many workers a strategy of several workers has."""
        return self.plan("allreduce", None).workers

    @property
    def launcher(self) -> str:
        """The launcher that was asked for, else the one that reaches the machines."""
        if (asked := values.read_launcher(self.options.launcher)[0]) != "auto":
            return asked
        return "local" if all(m.is_here for m in self.machines) else "ssh"

    @property
    def name(self) -> str:
        return self.options.name or self.module or self.script.stem

    def plan(self, strategy: str, batch: int | None) -> Plan:
        options = self.options
        return make_plan(
            self.machines,
            workers=options.workers,
            strategy=strategy,
            selection=options.machines,
            batch=batch,
        )

    def _view(self, plan: Plan) -> View:
        """Return the view of all workers; ``auto`` is ``parts`` where ``whole`` was never tried."""
        asked = cast("View", self.options.view)
        cpus = all(s.device == "cpu" for machine in plan.machines for s in machine.slots)
        here = self.launcher in ("local", "ssh", "inprocess")
        return asked if asked != "auto" or (cpus and here) else "parts"

    def job(self, strategy: str, batch: int | None, *, repeat: int = 0) -> Job:
        """Return the job of one run; each repeat has another seed, the same for all strategies."""
        options = self.options
        plan = self.plan(strategy, batch)
        if AUTO_SWITCH in strategy:
            found, why = self._auto_switch(plan.workers)
            strategy = strategy.replace(AUTO_SWITCH, found)
            plan = msgspec.structs.replace(self.plan(strategy, batch), reasons=[*plan.reasons, why])
        check, on_nonfinite = values.read_check(options.check)
        settings = RunSettings(
            strategy=strategy,
            epochs=options.epochs,
            batch=batch,
            seed=options.seed + repeat,
            precision=cast("Precision", options.precision),
            compile=cast("CompileMode", options.compile),
            data=self._data(),
            balance="off" if parse_spec(strategy).equal_shares else "auto",
            on_nonfinite=on_nonfinite,
            slow=speeds_of(self.slow, plan.workers),
            rate=self.rate,
            checkpoint_epochs=self.checkpoints.epochs,
            checkpoint_gap=self.checkpoints.gap,
            checkpoint_minutes=self.checkpoints.minutes,
            keep=self.checkpoints.keep,
            module=self.module,
            adopt=self.adopt,
            private_weights=may_write_weights(self.script),
            view=self._view(plan),
            check=check,
            loss=cast("LossKind | None", options.loss),
            keras=self.keras,
            profile_steps=options.profile or 0,
        )
        return Job(
            script=self.script,
            arguments=list(self.words),
            settings=settings,
            plan=plan,
            launcher=self.launcher,
            command=self.command,
            fleet=self._fleet(),
        )

    def _auto_switch(self, workers: int) -> tuple[str, str]:
        """The switch that past runs of this script recommend, and why."""
        from phalanx.observe.summary.past_runs import losses_of, past_runs
        from phalanx.plan.choice.evidence import MIDDLE_SWITCH, earliest_switch, why_auto_switch

        losses = losses_of(past_runs(runs_home()), self.script, self.words)
        return earliest_switch(losses, workers) or MIDDLE_SWITCH, why_auto_switch(losses, workers)

    def _fleet(self) -> Fleet:
        return Fleet(
            machines=(*self.machines, *self.servers),
            servers=tuple(machine.name for machine in self.servers),
            pool=self.options.pool,
            tls=self.pool.tls,
            data=self.options.data,
            ship_limit=self.pool.ship_limit,
            follow_links=self.pool.follow_links,
            detach=self.options.detach,
            workers=self.options.workers,
            cluster=values.read_launcher(self.options.launcher)[1],
        )

    def _data(self) -> str | None:
        """Return the path of the data on this machine; other machines may have other paths."""
        if self.options.data is not None:
            return str(self.options.data.resolve())
        return next((m.data for m in self.machines if m.data and m.is_here), None)


def check(
    options: RunOptions,
    script: Path,
    invocation: Invocation,
    *,
    module: bool = False,
    joins: bool = True,
    keras: str | None = None,
) -> Request:
    """Check the options and return the request; refuse mistakes that can be known before a start.

    ``module``: ``script`` is the name of a module, as for ``python -m``. ``joins``: the script is
    not one of another framework. ``keras``: the name in ``--framework`` of a Keras script, whose
    own distribution is left out.
    """
    slow, rate = values.read_slow(options.slow), values.read_rate(options.rate)
    times = values.read_checkpoints(options.checkpoint_every)
    values.check_at_least("--workers", options.workers, 1)
    values.check_at_least("--epochs", options.epochs, 1)
    values.check_at_least("--seed", options.seed, 0)
    values.check_profile(options)
    if options.seed >= MOST_SEED:
        raise InputError(f"--seed {options.seed} is too large", f"Use a seed below {MOST_SEED}.")
    _check_choices(options)
    values.read_check(options.check)
    values.read_launcher(options.launcher)
    if module and not joins:
        raise InputError("-m cannot be used with --framework", "Give the script's path.")
    named = None
    if module:
        script, named = module_file(str(script), Path.cwd())
    script = check_script(script, joins=joins and keras is None)
    if adopt := joins and is_adopted(script):
        values.check_adopted(options, uses_keras(script))
    machines, servers, pool = _machines(options)
    request = Request(
        options=options,
        script=script,
        words=invocation.words,
        command=invocation.command,
        machines=machines,
        pool=pool,
        module=named,
        adopt=adopt,
        slow=slow,
        rate=rate,
        checkpoints=times,
        servers=servers,
        keras=keras if keras in KERAS_SYSTEMS else None,
    )
    _check_travel(request)
    check_speeds(slow, request.workers)
    return request


def check_speeds(slow: Sequence[float], workers: int) -> None:
    if len(slow) > workers:
        raise InputError(
            f"--slow has {len(slow)} speeds for {workers} worker{'s' * (workers != 1)}",
            f"Give at most {workers}, or --workers {len(slow)}.",
        )


def speeds_of(slow: Sequence[float], workers: int) -> list[float] | None:
    """Return a speed for each worker, 1 where none is given; ``None`` if none is given at all."""
    return [*slow, *[1.0] * workers][:workers] if slow else None


def _check_choices(options: RunOptions) -> None:
    for what, value, known in (
        ("precision", options.precision, PRECISIONS),
        ("--compile", options.compile, COMPILE_MODES),
        ("--view", options.view, VIEWS),
        ("--loss", options.loss or "mean", LOSSES),
    ):
        if value not in known:
            raise InputError(f"unknown {what} '{value}'", did_you_mean(value, known))


def _machines(options: RunOptions) -> tuple[list[Machine], list[Machine], Pool]:
    """Return the machines of workers, the machines of servers, and the pool that has both."""
    if options.pool is None:
        pool = this_machine()
    else:
        pool = as_measured(read_blueprint(options.pool), read_probe(options.pool))
    parts = [part.strip() for part in options.machines.split(",")]
    named = [part.removeprefix(SERVES) for part in parts if part.startswith(SERVES)]
    servers = [machine for name in named for machine in select(pool, name)]
    rest = [part for part in parts if not part.startswith(SERVES)]
    workers = [m for m in select(pool, ",".join(rest or ["all"])) if m not in servers]
    if not workers:
        raise InputError(
            f"--machines {options.machines} leaves no machine for workers",
            f"Name fewer machines with {SERVES}.",
        )
    return workers, servers, pool


def _check_travel(request: Request) -> None:
    options, launcher = request.options, request.launcher
    if request.servers and launcher != "ssh":
        raise InputError(
            f"{SERVES} in --machines cannot be used with the launcher '{launcher}'",
            "Give a blueprint of machines that SSH reaches: --pool FILE.",
        )
    remote = [machine.name for machine in request.machines if not machine.is_here]
    if remote and launcher in ("local", "inprocess"):
        raise InputError(
            f"the launcher '{launcher}' cannot reach {', '.join(remote)}",
            "Leave --launcher out, or select machines with 'host: here'.",
        )
    if options.data is not None and not options.data.is_dir():
        raise InputError(f"--data {options.data} is not a folder", "Name the folder with the data.")
    if options.detach and launcher != "ssh":
        raise InputError(
            f"--detach cannot be used with the launcher '{launcher}'",
            "Use --launcher ssh; or, on this machine: nohup phalanx run … &",
        )
