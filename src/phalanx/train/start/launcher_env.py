"""Finds the process's place in a run that a cluster's own launcher started, and where all meet.

Each launcher (torchrun, Open MPI's mpirun, Slurm's srun, or a person) sets variables of its own;
this module maps them to one :class:`Seat`, or one clear error, and connects to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from phalanx.core import hosts_settings as hosts
from phalanx.core import settings, words
from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.run_folder.run_paths import slug
from phalanx.core.settings import PRECISIONS, Precision, RunSettings
from phalanx.core.spec import parse_spec

Numbers = tuple[int, int]
"""The number of a process, and how many there are."""
LauncherName = Literal["torchrun", "mpirun", "srun", "by hand", "phalanx"]
MOST_SEED = 2**32
_FIRST_PORT, _PORTS = 15000, 15000
"""The first port and how many: below the ports that Linux hands out by itself (from 32768)."""
_COUNT = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")


@dataclass(frozen=True)
class Seat:
    """The place of one process among those that train together."""

    launcher: LauncherName
    process: int
    """The process's number among all, from 0."""
    processes: int
    locals: int | None
    """How many processes are on its machine; ``None``: unknown."""
    meet_at: str
    """The address (or name) of the machine of process 0."""
    port: int
    """The port on which process 0 listens; never the launcher's own."""
    run: str
    """A word that all processes of this start share."""
    machine: str


def seat_of(variables: Mapping[str, str], hostname: str) -> Seat | None:
    """Return the seat of ``variables``; ``None`` without a launcher, or under Phalanx's."""
    if settings.RANK in variables:
        return None
    found = Variables(variables)
    for process, processes, read in _LAUNCHERS:
        # A batch script has SLURM_PROCID too, but runs once: only steps have the other variable.
        if found.text(processes) or (found.text(process) and read is not _srun):
            numbers = numbers_of(found, process, processes)
            return None if numbers[1] == 1 else read(found, numbers, slug(hostname))
    return None


def own_seat(variables: Mapping[str, str]) -> Seat | None:
    """Return the seat that Phalanx's own launcher gave to a worker of several machines."""
    if {settings.RANK, hosts.MEET} - variables.keys() or settings.ARENA in variables:
        return None
    found = Variables(variables)
    # With parameter servers, there are more processes than workers.
    count = hosts.PROCESSES if hosts.PROCESSES in variables else settings.WORKERS
    numbers = numbers_of(found, settings.RANK, count)
    machine = found.text(settings.MACHINE) or "here"
    return _by_our_variables(found, "phalanx", numbers, machine, "the launcher sets it")


def settings_of(variables: Mapping[str, str]) -> RunSettings:
    """The run's settings: ``PHALANX_SETTINGS``, or one variable for each of the common ones."""
    text = variables.get(settings.SETTINGS)
    if text:
        try:
            chosen = RunSettings.from_json(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InputError(
                f"{settings.SETTINGS} cannot be read: {error}",
                "Unset it: phalanx worker sets it; by hand, use PHALANX_STRATEGY and others.",
            ) from None
        parse_spec(chosen.strategy)
        return chosen
    found = Variables(variables)
    precision = found.text(hosts.PRECISION) or "float32"
    if precision not in PRECISIONS:
        raise InputError(
            f"{hosts.PRECISION} cannot be '{precision}'", did_you_mean(precision, PRECISIONS)
        )
    return RunSettings(
        strategy=parse_spec(found.text(hosts.STRATEGY) or "allreduce").text,
        epochs=found.number(hosts.EPOCHS, least=1),
        batch=found.number(hosts.BATCH, least=1),
        seed=found.number(hosts.SEED, most=MOST_SEED - 1) or 0,
        precision=cast(Precision, precision),
        balance="auto",
    )


def _by_hand(found: Variables, numbers: Numbers, machine: str) -> Seat:
    wanted = "one address and port for all, such as 10.0.0.1:9900"
    return _by_our_variables(found, "by hand", numbers, machine, wanted)


def _by_our_variables(
    found: Variables, launcher: LauncherName, numbers: Numbers, machine: str, wanted: str
) -> Seat:
    """Return the seat; ``wanted``: what ``PHALANX_MEET`` should have been."""
    meeting = address, port = meeting_of(found, "", None, wanted)
    here = found.number(hosts.LOCALS, least=1, most=numbers[1])
    return Seat(launcher, *numbers, here, *meeting, run_word(found, f"{address}-{port}"), machine)


def _torchrun(found: Variables, numbers: Numbers, machine: str) -> Seat:
    here = found.number("LOCAL_WORLD_SIZE", least=1, most=numbers[1])
    taken = found.number("MASTER_PORT", least=1, most=65535)
    # torchrun itself listens on MASTER_PORT, so take the port beside it.
    beside = None if taken is None else taken + 1 if taken < 65535 else taken - 1
    meeting = address, port = meeting_of(
        found, found.text("MASTER_ADDR"), beside, "the address of process 0, such as 10.0.0.1:29501"
    )
    given = found.text("TORCHELASTIC_RUN_ID")
    # torchrun says "none" without --rdzv-id.
    run = given if given not in ("", "none") else f"{address}-{taken or port}"
    again = found.number("TORCHELASTIC_RESTART_COUNT")
    run = run_word(found, f"{run}-again-{again}" if again else run)
    return Seat("torchrun", *numbers, here, *meeting, run, machine)


def _mpirun(found: Variables, numbers: Numbers, machine: str) -> Seat:
    here = found.number("OMPI_COMM_WORLD_LOCAL_SIZE", least=1, most=numbers[1])
    # Open MPI names the machine of mpirun, where process 0 need not be.
    meeting = address, port = meeting_of(
        found, "", None, f"mpirun -x {hosts.MEET}=10.0.0.1:9900, the machine of process 0"
    )
    job = found.text("PMIX_NAMESPACE") or found.text("OMPI_MCA_ess_base_jobid")
    run = run_word(found, job or f"{address}-{port}")
    return Seat("mpirun", *numbers, here, *meeting, run, machine)


def _srun(found: Variables, numbers: Numbers, machine: str) -> Seat:
    job, step = found.number("SLURM_JOB_ID", least=1), found.number("SLURM_STEP_ID")
    nodes = found.text("SLURM_STEP_NODELIST") or found.text("SLURM_JOB_NODELIST")
    # The port is the same for every process of a step, and differs between jobs on one machine.
    meeting = address, port = meeting_of(
        found,
        first_host(nodes) if nodes else "",
        None if job is None else _FIRST_PORT + (job * 16 + (step or 0)) % _PORTS,
        "the node of process 0 and a free port, such as node01:9900",
    )
    again = found.number("SLURM_RESTART_COUNT")
    run = f"{job}.{step or 0}" if job else f"{address}-{port}"
    run = run_word(found, f"{run}-again-{again}" if again else run)
    node = found.text("SLURMD_NODENAME")
    here = _on_this_node(found)
    return Seat("srun", *numbers, here, *meeting, run, slug(node) if node else machine)


# The order matters: torchrun under srun has the variables of both, and its own count is right.
_LAUNCHERS = (
    (hosts.PROCESS, hosts.PROCESSES, _by_hand),
    ("RANK", "WORLD_SIZE", _torchrun),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _mpirun),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _srun),
)


def _on_this_node(found: Variables) -> int | None:
    name = "SLURM_STEP_TASKS_PER_NODE"
    text = found.text(name)
    if not text:
        name, text = "SLURM_TASKS_PER_NODE", found.text("SLURM_TASKS_PER_NODE")
    node = found.number("SLURM_NODEID")
    if not text or node is None:
        return None
    counts = tasks_by_node(name, text)
    if node >= len(counts):
        raise InputError(
            f"SLURM_NODEID is {node}, but {name} ('{text}') has {len(counts)} nodes",
            f"Start it by srun; or set {hosts.PROCESS}, {hosts.PROCESSES}.",
        )
    return counts[node]


# Slurm's notations: lists of hosts, and of the tasks on each of them.


def first_host(text: str) -> str:
    """Return ``node01`` of ``node[01-04,7],login``, also with several brackets."""
    whole = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", whole[0]) if whole else ""


def tasks_by_node(name: str, text: str) -> list[int]:
    """Return 2, 2, 2, 1 for ``2(x3),1``."""
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        times = int(found[2] or 1) if found else 0
        if found is None or len(counts) + times > MOST_PROCESSES:
            raise InputError(f"{name} cannot be read: '{text[:40]}'", "Slurm's form is 2(x3),1")
        counts += [int(found[1])] * times
    return counts


MOST_PROCESSES = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]*")


class Variables:
    """The environment variables of a process, also read as numbers. An empty one counts as not set;
    a wrong one gives one clear line that names it."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def text(self, name: str) -> str:
        return self._variables.get(name, "").strip()

    def number(self, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """Return the whole number in ``name``; ``None`` if it is not set."""
        text = self.text(name)
        if not text:
            return None
        # int() takes more than digits, and refuses thousands of them.
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        if not least <= number <= most:
            wanted = f"from {least} to {most}" if most < 2**63 - 1 else f"{least} or more"
            raise InputError(
                f"{name} must be a whole number, {wanted}, not '{words.short(text)}'",
                "The launcher sets it, once for each process; correct or unset it.",
            )
        return number


def numbers_of(found: Variables, process: str, processes: str) -> Numbers:
    """Return this process's number and how many there are, and check that they fit."""
    count, number = found.number(processes, least=1, most=MOST_PROCESSES), found.number(process)
    if count is None or number is None:
        name, beside = (processes, process) if count is None else (process, processes)
        raise InputError(
            f"{beside} is set, but {name} is not",
            f"The launcher sets both; set {name} as well, or unset {beside}.",
        )
    if number >= count:
        raise InputError(
            f"{process} is {number}, but {processes} is {count}",
            f"Count processes from 0 to {count - 1}.",
        )
    return number, count


def meeting_of(found: Variables, address: str, port: int | None, wanted: str) -> tuple[str, int]:
    """Return process 0's address and port; ``PHALANX_MEET`` and ``PHALANX_PORT`` override them."""
    told = found.text(hosts.MEET)
    if told:
        address, told_port = _split(told)
        port = told_port or port
    port = found.number(hosts.PORT, least=1, most=65535) or port
    if not address or port is None:
        missing = hosts.PORT if address and told else hosts.MEET
        raise InputError(
            f"{missing} is not set: the address of process 0 is unknown",
            f"Set {hosts.MEET}: {wanted}",
        )
    if not _NAME.fullmatch(address):
        raise InputError(f"process 0 cannot be at '{address}'", f"Set {hosts.MEET}: {wanted}")
    return address, port


def _split(text: str) -> tuple[str, int | None]:
    """Split ``HOST``, ``HOST:PORT``, ``[ADDRESS]:PORT``, or an IPv6 address alone."""
    bracketed = re.fullmatch(r"\[([^\[\]]+)\](?::(.+))?", text)
    if bracketed:
        host, port = bracketed[1], bracketed[2] or ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        return text, None
    if not port:
        return host, None
    return host, Variables({hosts.MEET: port}).number(hosts.MEET, least=1, most=65535)


def run_word(found: Variables, otherwise: str) -> str:
    """Return a word that may be part of a folder's name."""
    return slug(found.text(hosts.RUN_ID) or otherwise)[:100]
