"""Starts workers behind seats: processes of a cluster, each of which starts one worker.

Ray and Spark share this: the controller sends questions to the seats, and polls for answers.
"""

from __future__ import annotations

import signal
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from phalanx.agent.storage.run_results import LEAVING
from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.cluster import seats
from phalanx.launch.launcher import Job, Launch, describe_launch, never
from phalanx.launch.machines.remote_files import FileDownload
from phalanx.launch.run.interrupts import await_end
from phalanx.launch.shipping.home import checkpoints
from phalanx.launch.shipping.home.incoming import Incoming
from phalanx.launch.shipping.home.results import Collected, note_failure, settle_all

_EVERY = 0.2
_AFTER_KILL = 5.0
_WAITING = 20.0
_ANSWER = 10.0
_HOMEWARD = 600.0
_PAUSE = 0.002
_Polled = tuple[int | None, dict[str, bytes], list[str]]


class SeatLauncher(seats.ClusterLauncher):
    """The base of launchers with seats; a subclass places them and carries questions."""

    cluster: ClassVar[str]
    """The cluster's name in messages."""
    check: ClassVar[str]
    """The advice to a user when the cluster fails."""
    together: ClassVar[bool] = False
    """Whether the cluster ends all seats when it loses one."""
    _job: Job
    _paths: RunPaths

    def __init__(self) -> None:
        super().__init__()
        self._notes: list[seats.SeatNote] = []
        self._shared: list[bool] = []
        self._codes: dict[int, int] = {}
        self._lost: dict[int, MachineError] = {}
        self._homes: list[FileDownload] = []
        self._coming: Iterator[None] = iter(())
        """A checkpoint that is being fetched."""
        self._newest, self._next_checkpoint = 0, 0.0
        self._asked: dict[int, Any] = {}
        self._last = 0.0
        self._steps: Iterator[None] = iter(())
        self._started = False
        self._tls = False

    @abstractmethod
    def _place(self, count: int, folder: str, mark: str) -> Iterator[None]:
        """Make the seats, in steps of this iterator; seats that see ``mark`` share the folder."""

    @abstractmethod
    def _ask(self, rank: int, method: str, *given: Any) -> Any:
        """Call a method of a seat; return a question, for the methods below."""

    @abstractmethod
    def _answered(self, questions: Sequence[Any]) -> bool:
        """Whether all have an answer, or never will."""

    @abstractmethod
    def _answer(self, question: Any, seconds: float = 0.0) -> Any:
        """Wait at most ``seconds`` for an answer; raise ``SeatLost`` if there is none."""

    @abstractmethod
    def _release(self) -> None:
        """End the seats, and leave the cluster."""

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        self._job = job
        return describe_launch(job, paths, seats.commands(job, paths))

    def start(self, launch: Launch, paths: RunPaths) -> None:
        self._paths = paths
        self._steps = self._launching(launch, paths)

    def _launching(self, launch: Launch, paths: RunPaths) -> Iterator[None]:
        """Place the seats, look at the nodes and start the workers, in steps of this iterator."""
        count, mark = len(launch.workers), f".seats-{RunKey.new().text()[:16]}"
        (paths.folder / mark).touch()
        try:
            yield from self._place(count, str(paths.folder.absolute()), mark)
            looks = [self._ask(rank, "look") for rank in range(count)]
            yield from self._until(looks, f"{self.cluster} starts its processes")
            found = [self._answer(look) for look in looks]
        finally:
            (paths.folder / mark).unlink()
        self._notes = seats.settled(
            [msgspec.json.decode(note, type=seats.SeatNote) for note, _, _ in found]
        )
        self._shared = [shared for _, shared, _ in found]
        first = self._notes[0].address
        port = self._ask(0, "port", first)
        yield from self._until([port], f"{self.cluster} starts its processes")
        ahead, tls = found[0][2], self._tls
        meeting = seats.Meeting(address=first, port=self._answer(port), ahead=ahead, tls=tls)
        orders = seats.seat_orders(launch, paths, meeting, self._notes, self._shared)
        begun = [self._ask(rank, "start", *order) for rank, order in enumerate(orders)]
        yield from self._until(begun, f"{self.cluster} starts the workers")
        for question in begun:
            self._answer(question)
        seats.write_down_nodes(launch, self._job.plan, paths, self._notes, None)
        pairs = zip(self._notes, self._shared, strict=True)
        self._homes = [self._home(paths, note, shared) for note, shared in pairs]
        self._started = True

    def _is_first(self, note: seats.SeatNote) -> bool:
        """Whether this worker is the first of its node."""
        return seats.mates_of(note, self._notes)[0] == note.rank

    def _home(self, paths: RunPaths, note: seats.SeatNote, shared: bool) -> FileDownload:
        """Make the download of a worker's files; empty if the worker writes to our folder."""
        ranks, node = ([], "") if shared else ([note.rank], note.node)
        return FileDownload(paths, ranks, self._news.append, node if self._is_first(note) else "")

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
        except (seats.SeatLost, msgspec.MsgspecError) as error:
            raise MachineError(
                f"{self.cluster} could not start the workers: {error}", self.check
            ) from None
        self._look()
        if self._lost and (self.together or len(self._lost) == len(self._notes)):
            raise next(iter(self._lost.values()))
        return dict(self._codes)

    def _look(self) -> None:
        """Ask the seats for news, and take what has come."""
        if not self._started:
            return
        idle = next(self._coming, self) is self
        for rank, question in list(self._asked.items()):
            if not self._answered([question]):
                continue
            del self._asked[rank]
            try:
                code, pieces, saved = msgspec.convert(self._answer(question), _Polled)
            except (seats.SeatLost, msgspec.ValidationError):
                name = self._notes[rank].node
                self._lost[rank] = MachineError(
                    f"{self.cluster} has lost worker {rank} on {name}",
                    f"Go on: phalanx resume {self._paths.id}",
                )
                continue
            if idle:
                self._begin_checkpoint(
                    rank, [name for name in saved if checkpoints.NAME.fullmatch(name)]
                )
            if not self._keep(rank, pieces) and code is not None:  # all that it wrote is here
                self._codes[rank] = code
        now = time.monotonic()
        if now - self._last >= _EVERY:
            self._last = now
            for rank in {*range(len(self._notes))} - {*self._asked, *self._codes, *self._lost}:
                self._asked[rank] = self._ask(rank, "poll", self._homes[rank].offsets)

    def _keep(self, rank: int, pieces: Mapping[str, bytes]) -> bool:
        """Keep pieces of a worker's files; return whether one has grown."""
        home = self._homes[rank]
        before = dict(home.offsets)
        try:
            for file, data in pieces.items():
                home.take(file, before.get(file, 0), data)
        except OSError as error:
            raise MachineError(f"cannot write the files of worker {rank}: {error}") from None
        return home.offsets != before

    def _begin_checkpoint(self, rank: int, names: Sequence[str]) -> None:
        """Begin to fetch the newest checkpoint of a node, if it is newer than what is here."""
        newest, now = max(map(int, names), default=0), time.monotonic()
        is_new = newest > self._newest and self._is_first(self._notes[rank])
        if is_new and now > self._next_checkpoint:
            self._newest, self._next_checkpoint = newest, now + checkpoints.BETWEEN
            self._coming = self._bring_checkpoint(rank, names)

    def _bring_checkpoint(self, rank: int, names: Sequence[str]) -> Iterator[None]:
        """Fetch the newest of a node's checkpoints, ``names``, in steps of this iterator."""
        newest = max(names, key=int)
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=self._paths.folder) as scratch:
            incoming = Incoming(self._notes[rank].node, Path(scratch))
            try:
                yield from self._fetch(rank, incoming, newest)
                checkpoints.place(incoming.received, self._paths, newest)
                checkpoints.follow(self._paths, newest, names)
            except (seats.SeatLost, OSError, msgspec.ValidationError) as error:
                self._news.append(f"checkpoint {int(newest)} was not fetched yet: {error}")
            finally:
                incoming.close()

    def codes(self) -> dict[int, int]:
        return dict(self._codes)

    def lost(self) -> dict[int, MachineError]:
        return dict(self._lost)

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        self._steps = iter(())  # whatever is not started yet is not started
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _AFTER_KILL)):
            if self._started and not self._have_ended():
                for rank in range(len(self._notes)):
                    self._ask(rank, "signal", int(number))
                await_end(self._have_ended, seconds, hurry if seconds == grace else never)

    def _have_ended(self) -> bool:
        self._look()
        return len({*self._codes, *self._lost}) == len(self._notes)

    def finish(self, say: Say, hurry: Callable[[], bool]) -> None:
        self._coming = iter(())  # the rest of a checkpoint comes with the other results
        for rank, note in enumerate(self._notes):
            if not self._shared[rank] and self._is_first(note) and rank not in self._lost:
                try:
                    self._bring_node(rank, note.node, say, hurry)
                except (seats.SeatLost, OSError) as error:
                    say(f"{note.node}: what its workers left could not be fetched: {error}")
        self._release()

    def _bring_node(self, rank: int, node: str, say: Say, hurry: Callable[[], bool]) -> None:
        """Fetch the results from the folder of a node that does not share ours, and remove it."""
        collected, deadline = Collected(), time.monotonic() + _HOMEWARD
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=self._paths.folder) as scratch:
            incoming = Incoming(node, Path(scratch))
            try:
                for _ in self._fetch(rank, incoming):
                    if hurry():
                        raise seats.SeatLost("you stopped the run; the rest is lost")
                    if time.monotonic() > deadline:
                        raise seats.SeatLost(
                            f"it took more than {_HOMEWARD:.0f} s; the rest is lost"
                        )
                    time.sleep(_PAUSE)
                problem = None
            except (seats.SeatLost, msgspec.ValidationError) as error:
                problem = MachineError(str(error))
            incoming.close()
            note_failure(incoming, problem, collected)
            settle_all(incoming, self._paths, collected)
        for text in collected.notes:
            say(text)
        if not collected.incomplete:
            self._answer(self._ask(rank, "clean"), _ANSWER)

    def _fetch(self, rank: int, incoming: Incoming, checkpoint: str = "") -> Iterator[None]:
        """Fetch one checkpoint, or all results except the checkpoints that are here."""
        have = {f"{checkpoints.PREFIX}{name}" for name in checkpoints.at_home(self._paths)}
        files = yield from self._reply(rank, "files", checkpoint)
        for name, size in msgspec.convert(files, list[tuple[str, int]]):
            path = name.replace(f"{LEAVING}/", checkpoints.PREFIX, 1) if checkpoint else name
            if path.rpartition("/")[0] in have:
                continue
            incoming.on_tell("result", {"path": path, "size": size}, b"")
            at = 0
            while at < size:
                yield
                piece = msgspec.convert((yield from self._reply(rank, "piece", name, at)), bytes)
                incoming.on_tell("result_part", {}, piece)
                at += len(piece)
                if not piece:
                    break
            incoming.on_tell("result_end", {}, b"")

    def _reply(self, rank: int, method: str, *given: Any) -> Generator[None, None, Any]:
        question = self._ask(rank, method, *given)
        yield from self._until([question], f"{self._notes[rank].node} is slow to send its files")
        return self._answer(question)
