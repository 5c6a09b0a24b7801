"""What a run needs on every machine: our own code, the project, an environment, data.

Manifests are made once, here; each machine is sent what it has not got yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.launch.frameworks import Framework
from phalanx.launch.launchers.launcher import Job
from phalanx.launch.launchers.remote_worker import Seating
from phalanx.launch.machines.agent_frames import AgentHello
from phalanx.launch.machines.agent_link import AgentLink
from phalanx.launch.machines.in_thread import in_thread
from phalanx.launch.run.progress_notes import telling
from phalanx.launch.run.say import Say
from phalanx.launch.shipping.code import code_manifest
from phalanx.launch.shipping.data import checkpoint_manifest, data_manifest
from phalanx.launch.shipping.datasets import Datasets, find_datasets
from phalanx.launch.shipping.environment import prepare_environment
from phalanx.launch.shipping.foreign import prepare_foreign
from phalanx.launch.shipping.manifest import FileManifest
from phalanx.launch.shipping.project import SHIP_LIMIT, megabytes, project_manifest
from phalanx.launch.shipping.send import read_answer, ship
from phalanx.launch.shipping.versions import Inspection
from phalanx.pool.machine import Machine

Load = tuple[Path, FileManifest]
"""A folder of this machine, and what of it travels."""
_WORTH_TELLING = 5_000_000
"""Bytes: less is there before anybody has read the line."""


@dataclass(frozen=True)
class Equipment:
    """The loads of one run."""

    code: Load
    project: Load
    data: Load | None
    datasets: Datasets
    checkpoint: Load | None
    resumed: str
    """Where in it the checkpoint is that the run goes on from."""
    framework: Framework | None
    say: Say

    async def bring(self, link: AgentLink, machine: Machine) -> tuple[Seating, Inspection]:
        """Have it all on ``machine``; where it is, and what Python its workers get."""
        tell = _Telling(self.say, "data sets").tell
        datasets = await self.datasets.bring(link, tell)  # first: what is nowhere ends it
        code = await self._ship(link, self.code, "code")
        await self._ship(link, self.project, "project")
        python = await self._python(link)
        data = machine.data
        if self.data is not None:
            data = await self._ship(link, self.data, "data")
        checkpoint = None
        if self.checkpoint is not None:
            copied = await self._ship(link, self.checkpoint, "data")
            checkpoint = f"{copied}/{self.resumed}"
        folder = read_answer(link, link.hello, AgentHello).run_folder
        return Seating(python.executable, folder, code, data, datasets, checkpoint), python

    async def _python(self, link: AgentLink) -> Inspection:
        tell = _Telling(self.say, "packages").tell
        if self.framework is not None and self.framework.requirements:
            return await prepare_foreign(link, self.framework, tell)
        return await prepare_environment(link, self.project[0], tell)

    async def _ship(self, link: AgentLink, load: Load, kind: str) -> str:
        root, manifest = load
        return await ship(link, manifest, root, kind, _Telling(self.say, kind).tell)


async def pack_up(job: Job, say: Say) -> Equipment:
    """Look at all that travels; reading it takes a while, and happens in threads."""
    fleet, resume = job.fleet, job.settings.resume
    limit = SHIP_LIMIT if fleet.ship_limit is None else fleet.ship_limit
    follow = fleet.follow_links
    own = [fleet.pool] if fleet.pool is not None else []
    async with telling(say, lambda: "reading what shall be sent to the machines"):
        project = await in_thread(project_manifest, job.script, limit, own, follow)
        return Equipment(
            code=await in_thread(code_manifest),
            project=project,
            data=await in_thread(data_manifest, fleet.data, follow) if fleet.data else None,
            datasets=await in_thread(find_datasets, job, say),
            checkpoint=await in_thread(checkpoint_manifest, Path(resume)) if resume else None,
            resumed="/".join(Path(resume).parts[-2:]) if resume else "",
            framework=job.framework,
            say=say,
        )


class _Telling:
    """Progress in tenths, of what is large."""

    def __init__(self, say: Say, kind: str) -> None:
        self._say, self._kind, self._tenth = say, kind, -1

    def tell(self, done: int, total: int, machine: str) -> None:
        if total < _WORTH_TELLING:
            return
        tenth = 10 * done // total
        if tenth > self._tenth:
            self._tenth = tenth
            sizes = f"{megabytes(done)} of {megabytes(total)}"
            self._say(f"{machine}: copying the {self._kind}, {sizes}")
