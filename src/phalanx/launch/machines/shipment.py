"""Sends what a run needs to every machine: our own code, the project, an environment, data.

Manifests are made once, here; each machine is sent only what it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.core import words
from phalanx.core.terminal import Say
from phalanx.launch.frameworks.framework import Framework
from phalanx.launch.launcher import Job
from phalanx.launch.link.agent_link import AgentLink
from phalanx.launch.link.event_loop import in_thread
from phalanx.launch.link.progress_notes import telling
from phalanx.launch.shipping.environment import PythonChoice, choose_foreign, choose_python
from phalanx.launch.shipping.manifest import FileManifest
from phalanx.launch.shipping.project import SHIP_LIMIT, project_manifest
from phalanx.launch.shipping.send import Progress, answers_wrongly, ship
from phalanx.launch.shipping.uploads import checkpoint_manifest, code_manifest, data_manifest
from phalanx.launch.shipping.versions import Inspection
from phalanx.pool.machine import Machine

Load = tuple[Path, FileManifest]
"""A folder of this machine, and the files of it that are sent."""
_WORTH_TELLING = 5_000_000
"""Bytes; the progress of a smaller load is not shown, because it arrives at once."""


@dataclass(frozen=True)
class RemoteLayout:
    """Where the files of a run are on one machine, and which Python starts its workers."""

    python: str
    run_folder: str
    code: str
    """The folder that holds our own package."""
    data: str | None = None
    checkpoint: str | None = None
    """The checkpoint from which this run continues."""

    @property
    def project(self) -> str:
        return f"{self.run_folder}/project"


@dataclass(frozen=True)
class Equipment:
    """Everything that one run sends to its machines."""

    code: Load
    project: Load
    data: Load | None
    checkpoint: Load | None
    resumed: str
    """The path of the resumed checkpoint inside ``checkpoint``; empty if there is none."""
    framework: Framework | None
    say: Say

    async def settle(
        self, link: AgentLink, machine: Machine, run_folder: str
    ) -> tuple[RemoteLayout, PythonChoice]:
        """Return the places of the files on ``machine``, and the workers' Python; send nothing."""

        def place(load: Load | None, kind: str) -> str | None:
            return f"{link.folder}/{kind}/{load[1].digest}" if load else None

        if self.framework is not None and self.framework.requirements:
            python = await choose_foreign(link, self.framework)
        else:
            python = await choose_python(link, self.project[0])
        layout = RemoteLayout(
            python=python.executable(link),
            run_folder=run_folder,
            code=place(self.code, "code") or "",
            data=place(self.data, "data") or machine.data,
            checkpoint=f"{place(self.checkpoint, 'data')}/{self.resumed}" if self.resumed else None,
        )
        return layout, python

    async def bring(
        self, link: AgentLink, layout: RemoteLayout, python: PythonChoice
    ) -> Inspection:
        """Send everything to the places in ``layout``; return the workers' Python."""
        there = {}
        there[layout.code] = await self._ship(link, self.code, "code")
        there[layout.project] = await self._ship(link, self.project, "project")
        found = await python.prepare(link, self._telling("packages"))
        if self.data is not None:
            there[str(layout.data)] = await self._ship(link, self.data, "data")
        if self.checkpoint is not None:
            copied = await self._ship(link, self.checkpoint, "data")
            there[str(layout.checkpoint)] = f"{copied}/{self.resumed}"
        if any(place != found_at for place, found_at in there.items()):
            raise answers_wrongly(link)  # the run's record already names those places
        return found

    async def _ship(self, link: AgentLink, load: Load, kind: str) -> str:
        root, manifest = load
        return await ship(link, manifest, root, kind, self._telling(kind))

    def _telling(self, kind: str) -> Progress:
        return _Telling(self.say, kind).tell


async def pack_up(job: Job, say: Say) -> Equipment:
    """List the files to send; they are read in threads, because that takes a while."""
    fleet, resume = job.fleet, job.settings.resume
    limit = SHIP_LIMIT if fleet.ship_limit is None else fleet.ship_limit
    follow = fleet.follow_links
    own = [fleet.pool] if fleet.pool is not None else []
    async with telling(say, lambda: "reading the files to send"):
        project = await in_thread(project_manifest, job.script, limit, own, follow)
        return Equipment(
            code=await in_thread(code_manifest),
            project=project,
            data=await in_thread(data_manifest, fleet.data, follow) if fleet.data else None,
            checkpoint=await in_thread(checkpoint_manifest, Path(resume)) if resume else None,
            resumed="/".join(Path(resume).parts[-2:]) if resume else "",
            framework=job.framework,
            say=say,
        )


class _Telling:
    """Reports the progress of large loads in tenths."""

    def __init__(self, say: Say, kind: str) -> None:
        self._say, self._kind, self._tenth = say, kind, -1

    def tell(self, done: int, total: int, machine: str) -> None:
        if total < _WORTH_TELLING:
            return
        tenth = 10 * done // total
        if tenth > self._tenth:
            self._tenth = tenth
            sizes = f"{words.size(done)} of {words.size(total)}"
            self._say(f"{machine}: copying the {self._kind}, {sizes}")
