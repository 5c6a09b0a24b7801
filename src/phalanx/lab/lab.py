"""The interface of a lab for tests, benchmarks and the command line.

>>> with Lab.up(2, name="example", rate="1gbit") as lab:  # doctest: +SKIP
...     subprocess.run(lab.command("m1", ["hostname"]), check=True)
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.agent.machine.control_groups import memory_used
from phalanx.core.errors import InputError, MachineError
from phalanx.core.files import write_asked
from phalanx.core.registry import did_you_mean
from phalanx.lab import cgroups, limits, network, starting
from phalanx.lab import state as states
from phalanx.lab.building import build, kill_and_wait, plan, remove
from phalanx.lab.needs import check_host, check_root
from phalanx.lab.state import LabState, MachineState
from phalanx.pool.here import Facts, measure


class Lab:
    """Emulated machines on this host. As a context manager it is always taken down."""

    def __init__(self, state: LabState) -> None:
        self.state = state

    @classmethod
    def up(
        cls,
        count: int,
        *,
        name: str = "lab",
        cpu: str | Sequence[float] | None = None,
        rate: float | str | None = None,
        memory: int | str | None = None,
        share: Sequence[Path | str] = (),
        password: str | None = None,
    ) -> Lab:
        """Start ``count`` machines, or leave nothing behind.

        ``cpu`` is percent of one core for each, ``rate`` bits per second, ``"1gbit"`` or
        ``"m3=100mbit,1gbit"``, ``memory`` bytes or ``"4GiB"``. Each machine has its own /tmp, /run
        and /dev/shm; ``share`` are the host's folders below these that all machines see.
        ``password`` opens root's account besides the key; it is kept nowhere but, hashed, in the
        machines.
        """
        check_host()
        states.folder_of(name)
        if not 1 <= count <= network.MACHINES_AT_MOST:
            raise InputError(
                f"a lab of {count} machines is not possible",
                f"Give a number from 1 to {network.MACHINES_AT_MOST}.",
            )
        quotas = limits.read_quotas(cpu, count)
        limits.check_sum(quotas, measure().cores)
        common, rates = limits.read_rates(rate, count)
        state = plan(name, quotas, common, rates, limits.read_memory(memory))
        try:
            build(state, starting.shared_folders(share), password)
        except BaseException:
            cls(state).down()
            raise
        return cls(state)

    @classmethod
    def load(cls, name: str = "lab") -> Lab:
        """A lab that was started before, by any process."""
        check_root()
        state = states.read(name)
        if state is None or not state.ready:
            raise InputError(
                f"lab '{name}' did not start completely", f"End it: phalanx lab down {name}"
            )
        return cls(state)

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def gateway(self) -> str:
        """The host's own address in the lab."""
        return self.state.gateway

    @property
    def key(self) -> Path:
        """The private key that opens every machine."""
        return states.folder_of(self.name) / states.KEY_FILE

    @property
    def machines(self) -> list[MachineState]:
        return self.state.machines

    def machine(self, name: str) -> MachineState:
        known = {machine.name: machine for machine in self.machines}
        if name not in known:
            raise InputError(
                f"lab '{self.name}' has no machine '{name}'", did_you_mean(name, known)
            )
        return known[name]

    def write_blueprint(self, path: Path) -> None:
        """Describe the lab in ``path``; the lab's end removes that file."""
        _write_blueprint(self.state, path, measure())

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """``words`` as a command of this host that runs them inside a machine.

        The environment goes along, except for ``HOME``; so does the working folder, where the
        machine has it. The process is in the machine's namespaces and control groups, and ends when
        the command here is ended.
        """
        return starting.inside(self._living(name), words)

    def counters(self, name: str) -> tuple[int, int]:
        """Bytes that the machine's interface has received and sent, counted by the kernel."""
        return network.counters(self._living(name).pid)

    def usage(self, name: str) -> tuple[int, int | None]:
        """Processes in the machine, and the bytes of memory that they use."""
        folders = self.machine(name).folders
        used = (memory_used(str(folder)) for folder in folders)
        memory = next((each for each in used if each is not None), None)
        return len(cgroups.processes(folders[0])), memory

    def slow(self, name: str, percent: float) -> None:
        """Give a machine ``percent`` of one core from now on."""
        machine = self._living(name)
        limits.check_quota(percent)
        others = [m.cpu for m in self.machines if m is not machine]
        limits.check_sum([*others, percent], measure().cores)
        machine.cpu = percent
        states.write(self.state)
        cgroups.limit_cpu(machine.folders, percent)

    def cut(self, name: str) -> None:
        """Take a machine's link down: no byte goes in or out."""
        machine = self._living(name)
        machine.cut = True
        states.write(self.state)
        network.set_link(machine, up=False)

    def heal(self, name: str) -> None:
        """Take the machine's link up again, and restore its first quota."""
        machine = self._living(name)
        network.set_link(machine, up=True)
        machine.cut, machine.cpu = False, machine.cpu_at_first
        cgroups.limit_cpu(machine.folders, machine.cpu)
        states.write(self.state)

    def kill(self, name: str) -> None:
        """End all processes of a machine as if its power failed: its peers hear nothing of it."""
        machine = self._living(name)
        machine.cut = machine.killed = True
        states.write(self.state)
        network.set_link(machine, up=False)
        kill_and_wait([machine])

    def down(self) -> None:
        """Remove everything that the lab made. Doing so twice does no harm."""
        take_down(self.name)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _living(self, name: str) -> MachineState:
        machine = self.machine(name)
        if not machine.alive:
            what = "was killed" if machine.killed else "is gone"
            raise MachineError(
                f"machine '{name}' {what}",
                f"End the lab, then start again: phalanx lab down {self.name}",
            )
        return machine


def take_down(name: str) -> bool:
    """Remove a complete or partial lab; return whether there was one."""
    check_root()
    folder = states.folder_of(name)
    if not folder.is_dir():
        return False
    with states.alone():
        state = states.read(name) if folder.is_dir() else None
        if state is not None:
            remove(state)
        states.forget(name)
    return True


def _text_of(state: LabState, facts: Facts, key: Path) -> str:
    """YAML, one machine a line; every value is written as JSON, which YAML contains."""
    defaults = {"user": "root", "key": str(key), "python": sys.executable, "emulated": True}
    quotas = [machine.cpu for machine in state.machines]
    unequal = len(set(quotas)) > 1
    lines = [f"# The lab '{state.name}' on this host. End it: phalanx lab down {state.name}"]
    lines += [f"defaults: {json.dumps(defaults)}", "machines:"]
    for machine in state.machines:
        memory = min(state.memory or facts.memory, facts.memory)
        fields: dict[str, object] = {
            "host": machine.address,
            "cores": cores_of(machine.cpu, facts.cores),
            "memory": f"{memory // 1024**2}MiB",
            "host_key": machine.host_key,
        }
        if unequal and machine.cpu is not None:
            fields["speed"] = machine.cpu / 100
        lines.append(f"  {machine.name}: {json.dumps(fields)}")
    return "\n".join(lines) + "\n"


def cores_of(cpu: float | None, host: int) -> int:
    """The cores of a quota, rounded up: a part of a core needs a thread too."""
    return host if cpu is None else min(host, max(1, -int(-cpu // 100)))


def _write_blueprint(state: LabState, path: Path, facts: Facts) -> None:
    """Write it for this user only, and note it first so that the lab's end removes it."""
    path = path.absolute()
    text = _text_of(state, facts, states.HOME / state.name / states.KEY_FILE)
    state.blueprint = str(path)
    state.blueprint_digest = hashlib.sha256(text.encode()).hexdigest()
    states.write(state)
    write_asked(path, text, mode=0o600)
