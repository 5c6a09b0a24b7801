"""One machine of a run, as the controller sees it: its agent, its files, its workers."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.link.agent_facts import as_found, ask_facts
from phalanx.launch.link.agent_frames import AgentListener, AgentRefused, Exited, FileChunk, read_as
from phalanx.launch.link.agent_link import AgentLink, open_agent
from phalanx.launch.link.agent_loss import without_controls
from phalanx.launch.machines.addresses import address_for_others
from phalanx.launch.machines.remote_files import FileDownload, MachineFile
from phalanx.launch.machines.shipment import Equipment, RemoteLayout
from phalanx.launch.shipping.environment import PythonChoice
from phalanx.launch.shipping.home.checkpoints import CheckpointDownload
from phalanx.launch.shipping.home.results import clean_up, take_checkpoint
from phalanx.launch.shipping.versions import Inspection
from phalanx.plan.plan import PlannedMachine
from phalanx.pool.machine import Machine
from phalanx.pool.machine_facts import MachineFacts

ANSWER_SECONDS = 20.0
SAMPLES_SECONDS = 300.0
"""Seconds to wait for kept samples: the samples of weeks may come over a slow line."""
MOST_NOTES = 2000


class SessionListener(Protocol):
    """The callbacks through which a session reports to its run."""

    def say(self, text: str) -> None: ...
    def on_exit(self, rank: int, code: int) -> None: ...
    def on_lost(self, session: MachineSession, error: MachineError) -> None: ...
    def on_gap(self, seconds: float) -> None: ...


class MachineSession(AgentListener):
    """The controller's work with one machine, from logging in to cleaning up."""

    facts: MachineFacts
    """The machine's hardware and addresses; set by ``connect``."""
    layout: RemoteLayout
    """The places of the run's files on the machine; set by ``settle``, as is ``_python``."""
    _python: PythonChoice

    def __init__(
        self,
        machine: Machine,
        run_id: str,
        run: SessionListener,
        *,
        detach: bool = False,
        attach: bool = False,
        dry: bool = False,
        hold: float = 0.0,
    ) -> None:
        self.machine = machine
        self.ranks: list[int] = []
        """The ranks planned for this machine."""
        self.started_ranks: list[int] = []
        self.remarks: list[str] = []
        """Differences found between the machine and the blueprint."""
        self.skew = 0.0
        """Seconds that the machine's wall clock is ahead of ours."""
        self.own_address = "127.0.0.1"
        """The address of this computer for other machines; used for the machine 'here'."""
        self.gone: MachineError | None = None
        """Why attaching failed: the machine is silent, or has nothing of the run; else ``None``."""
        self.samples: MachineFile | None = None
        self.python: Inspection | None = None
        self._link: AgentLink | None = None
        self._past: list[AgentLink] = []
        """Old links, kept because asyncio kills a local process when its link is collected."""
        self._run_id, self._run = run_id, run
        self._detach, self._attach, self._dry = detach, attach, dry
        self._hold = 0.0 if detach or attach else hold
        """Seconds that the agent waits for a controller that fell silent; 0: it does not wait."""
        self._files: FileDownload | None = None
        self._checkpoints: CheckpointDownload | None = None
        self._notes = 0
        self._watched = False
        """Whether a loss is reported to the run; otherwise only the requests under way fail."""

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def link(self) -> AgentLink:
        assert self._link is not None
        return self._link

    @property
    def alive(self) -> bool:
        return self._link is not None and self._link.lost is None and self.gone is None

    @property
    def run_folder(self) -> str:
        """The run's folder on the machine."""
        return f"{self.link.folder}/runs/{self._run_id}"

    @property
    def address(self) -> str:
        """The address at which other machines reach this one: see ``address_for_others``."""
        reached_at = self.own_address if self.machine.is_here else self.link.address
        return address_for_others(self.machine, self.facts, reached_at)

    @property
    def interface(self) -> str | None:
        """The network device that has ``address``; ``None`` if the facts name none."""
        found = (one.interface for one in self.facts.addresses if one.address == self.address)
        return next(found, None)

    # -- before the start --------------------------------------------------------------------

    async def connect(self, timeout: float) -> None:
        self._link = await self._open(timeout, detach=self._detach, attach=self._attach)
        if self._attach and self._link.hello.get("gone") is True:
            self.gone = MachineError(
                f"this run no longer exists on {self.name}",
                "Continue it with phalanx resume: it has ended, or the machine was restarted.",
            )
            await self._link.close()
            return
        self.facts, self.skew = await ask_facts(self._link, ANSWER_SECONDS)
        self.machine, self.remarks = as_found(self.machine, self.facts, self.skew)

    async def _open(
        self, timeout: float, *, detach: bool = False, attach: bool = False
    ) -> AgentLink:
        return await open_agent(
            self.machine,
            run=None if self._dry else self._run_id,
            detach=detach and not self._dry,
            attach=attach,
            hold=self._hold,
            timeout=timeout,
            listener=self,
        )

    async def settle(self, equipment: Equipment) -> None:
        """Find out where the run's files will be on the machine, and choose its Python."""
        settled = await equipment.settle(self.link, self.machine, self.run_folder)
        self.layout, self._python = settled

    async def equip(self, equipment: Equipment) -> None:
        """Send everything that the workers need to the machine."""
        self.python = await equipment.bring(self.link, self.layout, self._python)

    # -- workers -----------------------------------------------------------------------------

    def begin(self, paths: RunPaths, plan: PlannedMachine) -> None:
        self.ranks = [slot.rank for slot in plan.slots]
        self.samples = MachineFile(paths.machine(self.name))
        self._files = FileDownload(paths, self.ranks, self._say_by_name)
        self._checkpoints = CheckpointDownload(
            self.name,
            paths,
            lambda incoming, name: take_checkpoint(self.link, incoming, name),
            self._say_by_name,
        )
        self._watched = True

    async def start(self, workers: list[dict[str, Any]]) -> None:
        # First, so that the samples tell what used the machine before the workers.
        await self._have_sampled(ANSWER_SECONDS, keep=self._detach or self._hold > 0)
        self.started_ranks = list(self.ranks)
        try:
            await self.link.ask("start", workers=workers, timeout=ANSWER_SECONDS)
        except AgentRefused:
            await self._end_the_started()
            raise

    async def _end_the_started(self) -> None:
        """Stop workers that were started before one that failed to start; ignore their ends."""
        self.started_ranks = []
        with contextlib.suppress(MachineError):
            await self.link.ask("stop", grace=0.0, timeout=ANSWER_SECONDS)

    async def rejoin(self) -> None:
        """Ask the agent for the rest of the workers' files, their exit codes, and samples."""
        assert self._files is not None
        self.started_ranks = list(self.ranks)
        offsets = self._files.know()
        await self.link.ask("resume_tails", offsets=offsets, timeout=ANSWER_SECONDS)
        after = self.samples.go_on() if self.samples is not None else None
        await self._have_sampled(SAMPLES_SECONDS, keep=True, after=after or 0.0)

    async def reconnect(self, timeout: float) -> bool:
        """Become the machine's controller again; return whether its agent still has the run."""
        self._watched = False
        link = await self._open(timeout, attach=True)
        if link.hello.get("gone") is True:
            await link.close()
            return False
        old, self._link = self.link, link
        self._past.append(old)
        await old.detach()
        try:
            await self.rejoin()
        except MachineError:
            await link.detach()
            raise
        if link.lost is not None:
            raise link.lost
        self._watched = True
        return True

    async def _have_sampled(self, timeout: float, **fields: Any) -> None:
        """Ask for samples; only note that they are late, because the workers do not need them."""
        try:
            await self.link.ask("sample", on=True, timeout=timeout, **fields)
        except MachineError as error:
            if self.link.lost is not None:
                raise
            self.say(error.cause)

    async def fetch_samples(self, paths: RunPaths) -> None:
        """Fetch the samples that the run's former agent kept on the machine.

        A restart resets the clock that they were taken by: without earlier samples here, which tell
        its difference from the run's clock, none are fetched.
        """
        self.samples = MachineFile(paths.machine(self.name))
        after = self.samples.go_on()
        if after is not None:
            await self.link.ask("kept_samples", after=after, timeout=SAMPLES_SECONDS)

    async def leave(self) -> None:
        if self.alive:
            await self.link.detach()

    async def switch(self, request: str) -> None:
        if self.alive and self.started_ranks:
            await self.link.ask("switch", request=request, timeout=ANSWER_SECONDS)

    async def stop(self, grace: float) -> None:
        if self.alive and self.started_ranks:
            await self.link.ask("stop", grace=grace, timeout=grace + ANSWER_SECONDS)

    def on_tell(self, name: str, fields: dict[str, Any], payload: bytes) -> None:
        if name == "chunk" and self._files is not None:
            chunk = read_as(FileChunk, fields)
            self._files.take(chunk.file, chunk.offset, payload)
        elif name == "exited":
            ended = read_as(Exited, fields)
            if ended.rank in self.started_ranks:
                self._run.on_exit(ended.rank, ended.code)
        elif name == "saved" and self._checkpoints is not None:
            self._checkpoints.hear(str(fields.get("checkpoint")))
        elif name == "sample" and self.samples is not None:
            self.samples.hear(fields)
        elif name == "note":
            self._notes += 1
            if self._notes <= MOST_NOTES:  # so that no machine can fill the terminal
                self._say_by_name(without_controls(str(fields.get("text"))))

    def on_lost(self, error: MachineError) -> None:
        if self._watched:
            self._run.on_lost(self, error)

    def on_gap(self, seconds: float) -> None:
        self._run.on_gap(seconds)

    def say(self, text: str) -> None:
        self._run.say(text)

    def _say_by_name(self, text: str) -> None:
        self.say(f"{self.name}: {text}")

    # -- the end -----------------------------------------------------------------------------

    async def checkpoints_home(self) -> None:
        """Wait for the checkpoint that is on its way, if there is one."""
        if self._checkpoints is not None:
            await self._checkpoints.finish()

    async def clean(self) -> None:
        if self.alive and not self._dry:
            for text in await clean_up(self.link):
                self.say(text)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        for link in self._past:  # whose processes have ended with the agent
            await link.detach()
