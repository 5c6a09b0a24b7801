"""Probes a pool: starts a worker on each machine, then measures machines, pairs, collectives.

A machine that does not answer is left out, with its reason; the others are still measured. Every
wait has a limit; pairs and collectives together have the budget.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from phalanx.core.errors import MachineError, PhalanxError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.terminal import Say
from phalanx.launch.link.agent_link import open_agent
from phalanx.launch.link.agent_loss import why_it_ended
from phalanx.launch.link.event_loop import in_thread
from phalanx.launch.machines.addresses import own_address
from phalanx.launch.pool.probe_plan import (
    LONGEST_PAIR,
    PAIRS_SHARE,
    Schedule,
    all_reached,
    handling,
)
from phalanx.launch.shipping.manifest import FileManifest
from phalanx.launch.shipping.send import ignore_progress, ship
from phalanx.launch.shipping.uploads import code_manifest
from phalanx.launch.ssh.ssh_command import RunningCommand, start_command
from phalanx.policies.collective_cost import LinkSpeed
from phalanx.pool.machine import Machine
from phalanx.pool.measured import (
    CollectiveFigures,
    LeftOut,
    LinkFigures,
    MachineRates,
    Probe,
    Trouble,
)
from phalanx.sync.probe import probe_messages as m

START_SECONDS = 60.0
"""Seconds for a worker to be ready: a slow machine takes long to import torch."""
OPENING_SECONDS = 3.0
GRACE_SECONDS = 3.0
FIGURE_SECONDS = 1.0
MACHINE_SECONDS = 60.0
"""Seconds for all figures of one machine: the first matrix product on a GPU takes long."""
WORKER = "phalanx.sync.probe.probe_worker"
LOOPBACK = "127.0.0.1"

Requests = Mapping[str, m.Request]
Code = tuple[Path, FileManifest]


class Prober:
    """Runs one probe, from the first connection to the last figure."""

    def __init__(self, machines: Sequence[Machine], budget: float, *, tls: bool, say: Say) -> None:
        self._machines, self._budget, self._tls, self._say = machines, budget, tls, say
        self._key = RunKey.new()
        self._workers: dict[str, RunningCommand] = {}
        self._peers: dict[str, m.ProbePeer] = {}
        emulated = any(machine.emulated for machine in machines)
        self._found = Probe("", 0.0, budget, [], [], emulated=emulated)
        """The figures found so far."""
        self._deadline = float("inf")
        self._groups = itertools.count()

    async def run(self) -> Probe:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            await self._measure_machines()
            began = time.monotonic()
            self._deadline = began + self._budget
            await self._measure_pairs()
            message_seconds = await self._measure_collectives()
            seconds = time.monotonic() - began
        return msgspec.structs.replace(
            self._found,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 3),
            machines=[machine.name for machine in self._machines if machine.name in self._peers],
            message_seconds=message_seconds,
        )

    async def _start(self, stack: AsyncExitStack) -> None:
        """Start a worker on every machine that can be reached, and wait until it listens."""
        self._say(f"starting {len(self._machines)} workers")
        code = await in_thread(code_manifest)  # once for all machines, as reading it takes a while
        await asyncio.gather(*(self._start_one(stack, each, code) for each in self._machines))
        own = own_address([w.reached_from for w in self._workers.values()]) or LOOPBACK
        names = list(self._workers)
        await asyncio.gather(*(self._give_orders(name, own) for name in names))

    async def _start_one(self, stack: AsyncExitStack, machine: Machine, code: Code) -> None:
        try:
            worker = await start_command(machine, await _worker_command(machine, code, WORKER))
        except PhalanxError as error:
            self._note([machine.name], error.cause, error.remedy)
            return
        self._workers[machine.name] = await stack.enter_async_context(worker)

    async def _give_orders(self, name: str, own: str) -> None:
        """Send a worker its orders and its address: the blueprint's, else SSH's, else our own."""
        worker = self._workers[name]
        address = (worker.machine.address or worker.address or own).strip("[]")
        computing = MACHINE_SECONDS * len(self._machines)
        life = START_SECONDS + computing + self._budget + 10 * GRACE_SECONDS
        orders = m.ProbeOrders(self._key.text(), address, self._tls, life)
        answer = await self._ask_one(name, orders, START_SECONDS)
        if isinstance(answer, m.Ready):
            self._peers[name] = m.ProbePeer(name, address, answer.port)
        elif isinstance(answer, m.ProbeProblem):
            self._lose(name, f"{name}: {answer.cause}", answer.remedy)

    async def _measure_machines(self) -> None:
        """Measure all machines at once; emulated ones, which share a host's cores, in turn."""
        self._say("measuring how fast the machines compute")
        request, limit = m.MeasureMachine(FIGURE_SECONDS), MACHINE_SECONDS
        names = [machine.name for machine in self._machines if machine.name in self._peers]
        shared = any(machine.emulated for machine in self._machines)
        answers: dict[str, m.Answer] = {}
        for some in [[name] for name in names] if shared else [names]:
            answers |= await self._ask(dict.fromkeys(some, request), limit)
        for name, answer in answers.items():
            if isinstance(answer, m.MachineFigures):
                figures = (answer.cores, answer.memory, answer.gpus, answer.devices)
                self._found.rates.append(MachineRates(name, *figures))
            elif isinstance(answer, m.ProbeProblem):
                self._note([name], f"{name}: {answer.cause}", answer.remedy)

    async def _measure_pairs(self) -> None:
        names = [machine.name for machine in self._machines if machine.name in self._peers]
        pairs = list(itertools.combinations(names, 2))
        each = min(LONGEST_PAIR, self._budget * PAIRS_SHARE / max(1, len(pairs)))
        for number, (one, other) in enumerate(pairs, start=1):
            if self._left < each:
                self._found.left_out.append(LeftOut(f"{one} – {other}"))
            elif {one, other} <= self._workers.keys():
                self._say(f"pair {number} of {len(pairs)}: {one} – {other}")
                await self._measure_pair([one, other], each)

    async def _measure_pair(self, pair: list[str], seconds: float) -> None:
        group, peers = f"pair{next(self._groups)}", [self._peers[name] for name in pair]
        requests = {
            name: m.MeasurePair(group, rank, peers, seconds, OPENING_SECONDS)
            for rank, name in enumerate(pair)
        }
        answers = await self._ask(requests, OPENING_SECONDS + seconds + GRACE_SECONDS)
        found = [answers.get(name) for name in pair]
        if all(isinstance(answer, m.PairFigures) for answer in found):
            for source, target, figures in zip(pair, reversed(pair), found, strict=True):
                assert isinstance(figures, m.PairFigures)
                measured = (figures.latency, figures.bandwidth, figures.handling)
                self._found.links.append(LinkFigures(source, target, *measured))
            return
        problem = next((a for a in found if isinstance(a, m.ProbeProblem)), None)
        if problem and set(pair) <= self._workers.keys():
            self._note(pair, f"{pair[0]} – {pair[1]}: {problem.cause}", _OPEN_PORTS)

    async def _measure_collectives(self) -> float | None:
        """Time the collectives; return the seconds per small message, if known (``handling``)."""
        reached = {frozenset((link.source, link.target)) for link in self._found.links}
        alive = [name for name in self._peers if name in self._workers]
        names = all_reached([mc.name for mc in self._machines if mc.name in alive], reached)
        if len(names) < 2:
            return None
        among = [k for k in self._found.links if k.source in names and k.target in names]
        link = LinkSpeed.measured(max(k.latency for k in among), min(k.bandwidth for k in among))
        schedule = Schedule(len(names), link)
        todo = list(schedule.measurements())
        if self._left <= 0 or not await self._open_mesh(names):
            self._found.left_out.extend(LeftOut(name, size) for name, size in todo)
            return None
        self._found.participants.extend(names)
        for number, (name, size) in enumerate(todo):
            repeats = schedule.repeats(name, size, self._left, todo[number + 1 :])
            if repeats and set(names) <= self._workers.keys():
                self._say(f"{name.replace('_', '-').replace('.', ' ')}, {size:,} bytes")
                repeats *= await self._time(schedule, name, size, repeats)
            if not repeats:
                self._found.left_out.append(LeftOut(name, size))
        return handling(schedule, self._found.collectives)

    async def _open_mesh(self, names: list[str]) -> bool:
        group, peers = f"mesh{next(self._groups)}", [self._peers[name] for name in names]
        requests = {
            name: m.OpenMesh(group, rank, peers, OPENING_SECONDS) for rank, name in enumerate(names)
        }
        answers = await self._ask(requests, OPENING_SECONDS + GRACE_SECONDS)
        for name, answer in answers.items():
            if isinstance(answer, m.ProbeProblem):
                self._note([name], f"{name}: {answer.cause}", _OPEN_PORTS)
        return all(isinstance(answers.get(name), m.ProbeDone) for name in names)

    async def _time(self, schedule: Schedule, name: str, size: int, repeats: int) -> bool:
        """Time a collective; return whether that succeeded. After a timeout no more are timed."""
        names = self._found.participants
        request = m.TimeCollective(name, size, repeats)
        limit = max(0.0, self._left) + GRACE_SECONDS
        answers = await self._ask(dict.fromkeys(names, request), limit)
        first = answers.get(names[0])
        if not isinstance(first, m.Timed) or len(answers) < len(names):
            return False
        measured, predicted = median(first.seconds), schedule.predicted(name, size)
        schedule.learn(name, size, measured)
        self._found.collectives.append(CollectiveFigures(name, size, measured, predicted, repeats))
        return True

    @property
    def _left(self) -> float:
        return self._deadline - time.monotonic()

    async def _ask(self, requests: Requests, limit: float) -> dict[str, m.Answer]:
        """Return the answers by machine; a machine that gives none is not asked again."""
        names = list(requests)
        answers = await asyncio.gather(*(self._ask_one(n, requests[n], limit) for n in names))
        return {name: answer for name, answer in zip(names, answers, strict=True) if answer}

    async def _ask_one(
        self, name: str, request: m.Request | m.ProbeOrders, limit: float
    ) -> m.Answer | None:
        worker = self._workers[name]
        await worker.write(m.encode(request) + b"\n")
        try:
            line = await worker.line(limit)
            if line is not None:
                return m.answer_decoder.decode(line)
        except TimeoutError:
            self._lose(name, f"{name} did not answer within {limit:.0f} seconds", _SEE_LOAD)
            return None
        except msgspec.MsgspecError:
            self._lose(name, f"{name} sent unexpected output", _SAME_VERSION)
            return None
        error = await _why_it_ended(worker)
        self._lose(name, error.cause, error.remedy)
        return None

    def _lose(self, name: str, cause: str, remedy: str) -> None:
        self._workers.pop(name, None)
        self._note([name], cause, remedy)

    def _note(self, machines: list[str], cause: str, remedy: str) -> None:
        self._found.trouble.append(Trouble(machines, cause, remedy))


_OPEN_PORTS = "Check the firewalls: machines have to reach each other on any port."
_SEE_LOAD = "Check whether it is up and how busy it is, or increase --seconds."
_SAME_VERSION = "Install the same version of Phalanx there."


async def _why_it_ended(worker: RunningCommand) -> MachineError:
    error = await why_it_ended(worker, "worker")
    missing = re.search(r"No module named '?([\w.]+)", worker.errors)
    if missing is None:
        return error
    name, python = worker.machine.name, worker.machine.python
    return MachineError(
        f"{name}: {python} there has no module {missing[1]}",
        "Install it there, or set 'python' in the blueprint to a Python that has it.",
    )


async def _worker_command(machine: Machine, code: Code, module: str) -> Sequence[str]:
    """Send our code to the machine; return the command that starts ``module`` there."""
    if machine.is_here:
        return [machine.interpreter, "-m", module]
    root, manifest = code
    async with await open_agent(machine, run=None) as link:
        folder = await ship(link, manifest, root, "code", ignore_progress)
    return ["env", f"PYTHONPATH={folder}", machine.python, "-m", module]


def probe_links(
    machines: Sequence[Machine], budget: float, *, tls: bool = False, say: Say = lambda _: None
) -> Probe:
    """Measure all links among ``machines`` and the collectives on them, in ``budget`` seconds."""
    return asyncio.run(Prober(machines, budget, tls=tls, say=say).run())
