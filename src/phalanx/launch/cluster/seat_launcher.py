"""Workers behind seats: processes of a cluster's own, each of which starts one worker.

What Ray and Spark share: the controller asks the seats, and waits for none of them.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_key import KEY_VARIABLE, RunKey
from phalanx.core.run_folder.run_paths import RunPaths, slug
from phalanx.core.terminal import Say
from phalanx.launch.cluster.node import LOOPBACK
from phalanx.launch.cluster.seats import (
    ClusterLauncher,
    Meeting,
    SeatNote,
    commands,
    mates_of,
    seated,
    write_down_nodes,
)
from phalanx.launch.launchers.launcher import Job, Launch, describe_launch, never
from phalanx.launch.machines.remote_files import Homecoming
from phalanx.launch.run.interrupts import await_end
from phalanx.launch.shipping.home.incoming import Incoming
from phalanx.launch.shipping.home.results import Collected, note_failure, settle_all

_EVERY = 0.2
_AFTER_KILL = 5.0
_WAITING = 20.0
_ANSWER = 10.0
_HOMEWARD = 600.0
_Polled = tuple[int | None, dict[str, bytes]]
_Files = list[tuple[str, int]]


class SeatLost(Exception):  # noqa: N818  (what happened, not what went wrong here)
    """A seat does not answer any more, or the cluster cannot make it."""


class SeatLauncher(ClusterLauncher):
    """Below it, a cluster places the seats and carries questions to them."""

    cluster: ClassVar[str]
    """Its name, as messages say it."""
    check: ClassVar[str]
    """What to do when it fails."""
    together: ClassVar[bool] = False
    """Whether the cluster ends all seats when it loses one."""

    def __init__(self) -> None:
        super().__init__()
        self._job: Job | None = None
        self._paths: RunPaths | None = None
        self._notes: list[SeatNote] = []
        self._shared: list[bool] = []
        self._codes: dict[int, int] = {}
        self._lost: dict[int, MachineError] = {}
        self._homes: list[Homecoming] = []
        self._asked: dict[int, Any] = {}
        self._last = 0.0
        self._steps: Iterator[None] = iter(())
        self._started = False
        self._tls = False

    @abstractmethod
    def _place(self, count: int, folder: str, mark: str) -> Iterator[None]:
        """Make the seats; goes on when it is asked again. ``mark``: a file of the run's folder."""

    @abstractmethod
    def _ask(self, rank: int, method: str, *given: Any) -> Any:
        """Call a method of a seat; what it returns is a question, to be asked about below."""

    @abstractmethod
    def _answered(self, questions: Sequence[Any]) -> bool:
        """Whether all have an answer, or never will."""

    @abstractmethod
    def _answer(self, question: Any, seconds: float = 0.0) -> Any:
        """Waits so long at most; raises ``SeatLost``."""

    @abstractmethod
    def _release(self) -> None:
        """End the seats, and leave the cluster."""

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        self._job = job
        return describe_launch(job, paths, commands(job, paths))

    def start(self, launch: Launch, paths: RunPaths) -> None:
        self._paths = paths
        self._steps = self._launching(launch, paths)

    def _launching(self, launch: Launch, paths: RunPaths) -> Iterator[None]:
        """From the placement to the start of the last worker; goes on when it is asked again."""
        count, mark = len(launch.workers), f".seats-{RunKey.new().text()[:16]}"
        (paths.folder / mark).touch()
        try:
            yield from self._place(count, str(paths.folder.absolute()), mark)
            looks = [self._ask(rank, "look") for rank in range(count)]
            yield from self._until(looks, f"{self.cluster} starts its processes")
            found = [self._answer(look) for look in looks]
        finally:
            (paths.folder / mark).unlink()
        self._notes = _settled([msgspec.json.decode(note, type=SeatNote) for note, _, _ in found])
        self._shared = [shared for _, shared, _ in found]
        first = self._notes[0].address
        port = self._ask(0, "port", first)
        yield from self._until([port], f"{self.cluster} starts its processes")
        ahead, tls = found[0][2], self._tls
        meeting = Meeting(address=first, port=self._answer(port), ahead=ahead, tls=tls)
        orders = self._orders(launch, paths, meeting)
        begun = [self._ask(rank, "start", *order) for rank, order in enumerate(orders)]
        yield from self._until(begun, f"{self.cluster} starts the workers")
        for question in begun:
            self._answer(question)
        assert self._job is not None
        write_down_nodes(launch, self._job.plan, paths, self._notes, None)
        seats = zip(self._notes, self._shared, strict=True)
        self._homes = [self._home(paths, note, shared) for note, shared in seats]
        self._started = True

    def _orders(self, launch: Launch, paths: RunPaths, meeting: Meeting) -> list[tuple[Any, ...]]:
        """What the seats start: see ``WorkerSeat.start``."""
        key, script = {KEY_VARIABLE: RunKey.new().text()}, Path(launch.script).name
        files = [path for path in paths.source.rglob("*") if path.is_file()]
        project = {path.relative_to(paths.source).as_posix(): path.read_bytes() for path in files}
        found: list[tuple[Any, ...]] = []
        for note, shared in zip(self._notes, self._shared, strict=True):
            worker = seated(launch.workers[note.rank], self._notes, meeting, key)
            if not shared:
                argv = [script if word == launch.script else word for word in worker.argv]
                worker = msgspec.structs.replace(worker, argv=argv)
            ahead = meeting.ahead if self._is_first(note) else None
            order = msgspec.json.encode(worker)
            found.append((order, str(Path.cwd()), {} if shared else project, ahead))
        return found

    def _is_first(self, note: SeatNote) -> bool:
        """Of its node."""
        return mates_of(note, self._notes)[0] == note.rank

    def _home(self, paths: RunPaths, note: SeatNote, shared: bool) -> Homecoming:
        """Takes the files of a worker while it writes them; where it writes them here, none."""
        ranks, node = ([], "") if shared else ([note.rank], note.node)
        return Homecoming(paths, ranks, self._news.append, node if self._is_first(note) else "")

    def _until(self, questions: Sequence[Any], words: str) -> Iterator[None]:
        said = time.monotonic() + _WAITING
        while not self._answered(questions):
            if time.monotonic() > said:
                said = float("inf")
                self._news.append(words)
            yield

    def poll(self) -> dict[int, int]:
        try:
            next(self._steps, None)
        except (SeatLost, msgspec.MsgspecError) as error:
            raise MachineError(
                f"{self.cluster} could not start the workers: {error}", self.check
            ) from None
        self._look()
        if self._lost and (self.together or len(self._lost) == len(self._notes)):
            raise next(iter(self._lost.values()))
        return dict(self._codes)

    def _look(self) -> None:
        """Ask the seats for news, and take what has come."""
        if not self._started or self._paths is None:
            return
        for rank, question in list(self._asked.items()):
            if not self._answered([question]):
                continue
            del self._asked[rank]
            try:
                code, pieces = msgspec.convert(self._answer(question), _Polled)
            except (SeatLost, msgspec.ValidationError):
                name = self._notes[rank].node
                self._lost[rank] = MachineError(
                    f"{self.cluster} has lost worker {rank} on {name}",
                    f"Go on: phalanx resume {self._paths.id}",
                )
                continue
            if not self._keep(rank, pieces) and code is not None:  # first all that it wrote
                self._codes[rank] = code
        now = time.monotonic()
        if now - self._last >= _EVERY:
            self._last = now
            for rank in {*range(len(self._notes))} - {*self._asked, *self._codes, *self._lost}:
                self._asked[rank] = self._ask(rank, "poll", self._homes[rank].offsets)

    def _keep(self, rank: int, pieces: Mapping[str, bytes]) -> bool:
        """Whether one of the worker's files has grown."""
        home = self._homes[rank]
        before = dict(home.offsets)
        try:
            for file, data in pieces.items():
                home.take(file, before.get(file, 0), data)
        except OSError as error:
            raise MachineError(f"cannot write the files of worker {rank}: {error}") from None
        return home.offsets != before

    def codes(self) -> dict[int, int]:
        return dict(self._codes)

    def lost(self) -> dict[int, MachineError]:
        return dict(self._lost)

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        self._steps = iter(())  # whatever is not started stays so
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _AFTER_KILL)):
            if self._started and not self._have_ended():
                for rank in range(len(self._notes)):
                    self._ask(rank, "signal", int(number))
                await_end(self._have_ended, seconds, hurry if seconds == grace else never)

    def _have_ended(self) -> bool:
        self._look()
        return len({*self._codes, *self._lost}) == len(self._notes)

    def finish(self, say: Say, hurry: Callable[[], bool]) -> None:
        with contextlib.suppress(SeatLost, OSError):
            for rank, note in enumerate(self._notes):
                if not self._shared[rank] and self._is_first(note) and rank not in self._lost:
                    self._bring_node(rank, note.node, say, hurry)
        self._release()

    def _bring_node(self, rank: int, node: str, say: Say, hurry: Callable[[], bool]) -> None:
        """What its workers left in a folder that only it has; then that folder goes."""
        assert self._paths is not None
        collected, folder = Collected(), self._paths.folder
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=folder) as scratch:
            incoming = Incoming(node, Path(scratch))
            try:
                self._fetch(rank, incoming, hurry)
                problem = None
            except (SeatLost, msgspec.ValidationError) as error:
                problem = MachineError(str(error))
            incoming.close()
            note_failure(incoming, problem, collected)
            settle_all(incoming, self._paths, collected)
        for text in collected.notes:
            say(text)
        if not collected.incomplete:
            self._answer(self._ask(rank, "clean"), _ANSWER)

    def _fetch(self, rank: int, incoming: Incoming, hurry: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _HOMEWARD
        for name, size in msgspec.convert(self._answer(self._ask(rank, "files"), _ANSWER), _Files):
            incoming.on_tell("result", {"path": name, "size": size}, b"")
            at = 0
            while at < size:
                piece = msgspec.convert(
                    self._answer(self._ask(rank, "piece", name, at), _HOMEWARD), bytes
                )
                incoming.on_tell("result_part", {}, piece)
                at += len(piece)
                if hurry() or time.monotonic() > deadline:
                    raise SeatLost("the time for it is over")
                if not piece:
                    break
            incoming.on_tell("result_end", {}, b"")


def _settled(notes: list[SeatNote]) -> list[SeatNote]:
    """Where nodes did not say how many threads a worker has, its share of the cores."""
    alone = len({note.node for note in notes}) == 1
    found = []
    for rank, said in enumerate(notes):
        # A node's word for itself becomes part of names of files here.
        note = msgspec.structs.replace(said, rank=rank, node=slug(said.node))
        threads = note.threads or max(1, note.cores // len(mates_of(note, notes)))
        # On one machine nothing listens where another could connect.
        address = LOOPBACK if alone else note.address
        found.append(msgspec.structs.replace(note, threads=threads, address=address))
    return found
