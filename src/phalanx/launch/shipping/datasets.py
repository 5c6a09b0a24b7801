"""Ready-made data sets: what the script loads and this machine has goes to machines without it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.script.datasets import FILES, HOMES, data_home, files_in
from phalanx.core.terminal import Say
from phalanx.launch.link.agent_link import AgentLink
from phalanx.launch.script.script_datasets import Needs, needs_of
from phalanx.launch.shipping.listing import ListedFile, walk
from phalanx.launch.shipping.manifest import FileManifest, make_manifest
from phalanx.launch.shipping.send import Progress, read_answer, ship

if TYPE_CHECKING:
    from phalanx.launch.launcher import Job

LOOK_SECONDS = 180.0
"""A machine that asks dead name servers takes its time."""


class Found(msgspec.Struct):
    """What a machine says: what it has not, and what of that it could download."""

    missing: list[str]
    reached: list[str]


@dataclass(frozen=True)
class Datasets:
    """The data sets of one run."""

    script: str
    needs: Needs
    home: Path
    cached: FileManifest
    """All of them that this machine has, below ``home``."""
    asked: dict[str, list[str]]
    """The files of each by which a machine can tell whether it has it."""
    data_sent: bool
    """``--data``: the workers then look there, and not in their machines' caches."""

    @property
    def here(self) -> set[str]:
        return {entry.path.partition("/")[0] for entry in self.cached.entries}

    async def needed(self, link: AgentLink) -> bool:
        """Whether they are sent there; an error when one is neither there nor here."""
        if not self.asked:
            return False
        found = Found(list(self.asked), [])
        if not self.data_sent:
            found = await self._look(link)
        missing = set(found.missing) & set(self.asked)
        self._refuse(link, missing - self.here - set(found.reached))
        return bool(missing & self.here)

    async def send(self, link: AgentLink, progress: Progress) -> str:
        """The folder there."""

        def tell(done: int, total: int, machine: str) -> None:
            if not done:
                names = ", ".join(sorted(self.here))
                link.waiting.say(
                    f"{machine}: sending {names} ({words.size(total)}) from {self.home}"
                )
            progress(done, total, machine)

        return await ship(link, self.cached, self.home, "data", tell)

    async def _look(self, link: AgentLink) -> Found:
        answer = await link.ask(
            "datasets",
            timeout=LOOK_SECONDS,
            doing=lambda: f"looking for {', '.join(self.asked)}",
            files=self.asked,
            homes={name: HOMES.get(name, []) for name in self.asked if name not in self.here},
            folder=link.machine.data or "",
        )
        return read_answer(link, answer, Found)

    def _refuse(self, link: AgentLink, nowhere: set[str]) -> None:
        """``nowhere``: neither there nor here, nor to be downloaded."""
        machine = link.machine.name
        for name in sorted(nowhere & self.needs.surely):
            code = shlex.quote(f"import phalanx; phalanx.data.load({name!r})")
            raise InputError(
                f"{machine} has no '{name}', which {self.script} loads, and cannot download it; "
                f"it is not in {self.home} here either",
                f"Load it here once (python -c {code}), or send its files with --data DIR.",
            )
        for name in sorted(nowhere & self.needs.maybe):
            link.waiting.say(
                f"{machine} has no '{name}' and cannot download it, so {self.script} fails "
                f"there if it loads it; send its files with --data DIR"
            )


def find_datasets(job: Job, say: Say) -> Datasets:
    """What the script of ``job`` reads, less what ``--data`` has."""
    needs = needs_of(job.script, job.arguments, foreign=job.framework is not None)
    home, data = data_home(), job.fleet.data
    names = [name for name in sorted(needs.all) if _is_plain(name) and FILES.get(name) != ()]
    if data is not None:
        names = [n for n in names if not any(files_in(place, n) for place in (data / n, data))]
    listed = [file for name in names for file in _listed(home, name)]
    here = {file.path.partition("/")[0] for file in listed}
    asked = {name: list(FILES.get(name, ())) for name in names if name in FILES or name in here}
    if needs.unclear and not needs.mentioned and data is None:
        say(
            f"cannot determine which data set {job.script.name} loads; for machines without "
            f"internet, send its files with --data DIR"
        )
    return Datasets(job.script.name, needs, home, make_manifest(home, listed), asked, bool(data))


def _is_plain(name: str) -> bool:
    return bool(name) and name[0] != "." and "/" not in name and name.isprintable()


def _listed(home: Path, name: str) -> list[ListedFile]:
    """The files that a known data set consists of; of a source of somebody else all there are."""
    if name in FILES:
        paths = files_in(home / name, name)
        return [ListedFile(f"{name}/{path.name}", path.stat().st_size) for path in paths]
    if not (home / name).is_dir():
        return []
    files = walk(home / name, lambda path, is_folder: path.startswith("."))
    return [replace(file, path=f"{name}/{file.path}") for file in files]
