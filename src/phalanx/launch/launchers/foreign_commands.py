"""The commands for processes of another framework, which are the same on every launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from phalanx.core import settings
from phalanx.launch.frameworks import environment_of, settings_variables
from phalanx.launch.frameworks.framework import TENSORFLOW, WORKER, Framework, Places
from phalanx.launch.launcher import Job, WorkerCommand, log_name
from phalanx.launch.worker.keras_figures import MEASURE


@dataclass(frozen=True)
class MachineContext:
    """The programs, folders and data on one machine that its commands use."""

    python: str
    """The Python that has the framework."""
    script: str
    run_folder: str
    data: str | None = None
    before: tuple[str, ...] = ()
    """Words put before the command: ``process_binding``, which ends it with its parent process."""
    figures: str = ""
    """The program that runs a TensorFlow script and prints what its ``fit`` reports."""


def commands_of(
    job: Job, framework: Framework, places: Places, contexts: Mapping[str, MachineContext]
) -> list[WorkerCommand]:
    """Return ``python SCRIPT ARGUMENT…`` for every process; ``contexts`` are by machine."""
    variables = environment_of(framework.name, places)
    told = settings_variables(job.settings)
    commands = []
    for (machine, slot), process in zip(job.plan.seats, places.processes, strict=True):
        context = contexts[machine.name]
        env = {
            **told,
            **variables.get(slot.rank, {}),
            **framework.variables,
            settings.RUN_FOLDER: context.run_folder,
            settings.MACHINE: machine.name,
            settings.CPUS: ",".join(map(str, slot.cpus)),
            "PYTHONUNBUFFERED": "1",
        }
        if context.data:
            env[settings.DATA] = env["TFDS_DATA_DIR"] = context.data
        # Only the first process prints figures, because the controller reads them from its log.
        through = [context.figures] if slot.rank == 0 and framework.name == TENSORFLOW else []
        measured = MEASURE in framework.variables  # a run that only times steps
        if job.settings.profile_steps and process.role == WORKER and not measured:
            profiler = str(PurePosixPath(context.figures).with_name("profiled_script.py"))
            through = [profiler, str(job.settings.profile_steps), str(slot.rank), *through]
        commands.append(
            WorkerCommand(
                rank=slot.rank,
                machine=machine.name,
                argv=[*context.before, context.python, *through, context.script, *job.arguments],
                env=env,
                cpus=list(slot.cpus),
                threads=slot.threads,
                log=log_name(slot.rank),
                role=process.role,
            )
        )
    return commands
