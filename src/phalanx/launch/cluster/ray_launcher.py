"""Workers as processes of Ray actors, one bundle of a placement group each.

Nothing that listens is added to a cluster that is there; one of our own listens on loopback.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core.errors import InputError, MachineError, PhalanxError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.cluster.node import LOOPBACK
from phalanx.launch.cluster.ray_actor import RaySeat
from phalanx.launch.cluster.ray_connection import (
    address_on,
    append,
    bring_home,
    check_ray,
    connect,
    streamed,
)
from phalanx.launch.cluster.seats import (
    Meeting,
    NodeSamples,
    SeatNote,
    commands,
    on_cluster,
    write_down_nodes,
)
from phalanx.launch.launchers.launcher import Job, Launch, Launcher, describe_launch, never
from phalanx.launch.run.interrupts import await_end
from phalanx.observe.machines.monitor import MachineSamples

_EVERY = 0.2
_AFTER_KILL = 5.0
_WAITING = 20.0


class RayLauncher(Launcher):
    """The controller asks the actors, and waits for none of them."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._token: Path | None = None
        self._job: Job | None = None
        self._paths: RunPaths | None = None
        self._launch: Launch | None = None
        self._group: Any = None
        self._actors: list[Any] = []
        self._notes: list[SeatNote] = []
        self._shared: list[bool] = []
        self._codes: dict[int, int] = {}
        self._lost: dict[int, MachineError] = {}
        self._offsets: list[dict[str, int]] = []
        self._asked: dict[int, Any] = {}
        self._last = 0.0
        self._steps: Iterator[None] = iter(())
        self._started = False
        self._news: list[str] = []

    def open(
        self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool], *, dry: bool = False
    ) -> Job:
        check_ray()
        if dry:
            return on_cluster(job, "ray", job.plan.workers)
        self._ray, self._token = connect(job.fleet.cluster, paths)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        workers = job.fleet.workers or (job.plan.workers if len(nodes) == 1 else len(nodes))
        cores = int(self._ray.cluster_resources().get("CPU", 0))
        if cores < workers:
            self._disconnect()
            raise InputError(
                f"Ray has {cores} CPU{'s' * (cores != 1)} for {workers} workers",
                f"Use --workers {max(1, cores)}, or add nodes: ray start --address=…",
            )
        say(f"connected to Ray: {len(nodes)} node{'s' * (len(nodes) != 1)}")
        return on_cluster(job, "ray", workers)

    def prepare(self, job: Job, paths: RunPaths) -> Launch:
        self._job = job
        return describe_launch(job, paths, commands(job, paths))

    def start(self, launch: Launch, paths: RunPaths) -> None:
        self._launch, self._paths = launch, paths
        self._steps = self._launching(launch, paths)

    def _launching(self, launch: Launch, paths: RunPaths) -> Iterator[None]:
        """From the placement to the start of the last worker; goes on when it is asked again."""
        ray, job, count = self._ray, self._job, len(launch.workers)
        assert job is not None
        placement = importlib.import_module("ray.util.placement_group")
        scheduling = importlib.import_module("ray.util.scheduling_strategies")
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= count else 0
        bundle = {"CPU": 1, **({"GPU": 1} if gpus else {})}
        self._group = placement.placement_group([bundle] * count, strategy="SPREAD")
        yield from self._until([self._group.ready()], "Ray has no room yet for all workers")
        mark = f".ray-{RunKey.new().text()[:16]}"
        (paths.folder / mark).touch()
        seat = ray.remote(RaySeat)
        for rank in range(count):
            where = scheduling.PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=rank
            )
            chosen = seat.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=where)
            address = address_on(ray, self._group, rank)
            self._actors.append(chosen.remote(rank, address, str(paths.folder.absolute()), mark))
        looks = [actor.look.remote() for actor in self._actors]
        yield from self._until(looks, "Ray starts its processes")
        found = ray.get(looks)
        (paths.folder / mark).unlink()
        self._notes = [msgspec.json.decode(note, type=SeatNote) for note, _, _ in found]
        self._shared = [shared for _, shared, _ in found]
        # On one machine nothing listens where another could connect.
        if len({note.node for note in self._notes}) == 1:
            self._notes = [msgspec.structs.replace(n, address=LOOPBACK) for n in self._notes]
        first = self._notes[0].address
        port = self._actors[0].port.remote(first)
        yield from self._until([port], "Ray starts its processes")
        members = list(dict.fromkeys(note.address for note in self._notes))
        meeting = Meeting(address=first, port=ray.get(port), members=members, ahead=found[0][2])
        requests = self._requests(launch, paths, meeting)
        begun = [a.start.remote(request) for a, request in zip(self._actors, requests, strict=True)]
        yield from self._until(begun, "Ray starts the workers")
        ray.get(begun)
        write_down_nodes(launch, job.plan, paths, self._notes, None)
        self._offsets = [streamed(n, o, s) for n, o, s in self._streams(requests)]
        self._started = True

    def _streams(self, requests: list[dict[str, Any]]) -> Iterator[tuple[SeatNote, bool, bool]]:
        for note, request, shared in zip(self._notes, requests, self._shared, strict=True):
            yield note, request["local"][0] == 0, shared

    def _requests(self, launch: Launch, paths: RunPaths, meeting: Meeting) -> list[dict[str, Any]]:
        key, script = RunKey.new().text(), Path(launch.script)
        files = [path for path in paths.source.rglob("*") if path.is_file()]
        project = {path.relative_to(paths.source).as_posix(): path.read_bytes() for path in files}
        found = []
        for note, worker, shared in zip(self._notes, launch.workers, self._shared, strict=True):
            mates = [other.rank for other in self._notes if other.node == note.node]
            found.append(
                {
                    "worker": msgspec.json.encode(worker),
                    "meeting": msgspec.json.encode(meeting),
                    "key": key,
                    "several": len(self._notes) > 1,
                    "address": note.address,
                    "local": (mates.index(note.rank), len(mates)),
                    "threads": max(1, note.cores // len(mates)),
                    "cwd": str(Path.cwd()),
                    "argument": launch.script,
                    "script": script.name,
                    "project": {} if shared else project,
                }
            )
        return found

    def _until(self, waited: list[Any], words: str) -> Iterator[None]:
        said = time.monotonic() + _WAITING
        while len(self._ray.wait(waited, num_returns=len(waited), timeout=0)[0]) < len(waited):
            if time.monotonic() > said:
                said = float("inf")
                self._news.append(words)
            yield

    def poll(self) -> dict[int, int]:
        try:
            next(self._steps, None)
            self._look()
        except PhalanxError:
            raise
        except Exception as error:
            if not type(error).__module__.startswith("ray"):
                raise
            said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise MachineError(
                f"Ray could not start the workers: {said}", "See: ray status"
            ) from None
        return dict(self._codes)

    def _look(self) -> None:
        """Ask the actors for news, and take what has come."""
        if not self._started or self._paths is None:
            return
        for rank, answer in list(self._asked.items()):
            if not self._ray.wait([answer], timeout=0)[0]:
                continue
            del self._asked[rank]
            try:
                code, pieces = self._ray.get(answer)
            except self._ray.exceptions.RayError:
                name = self._notes[rank].node
                self._lost[rank] = MachineError(
                    f"Ray has lost worker {rank} on {name}",
                    f"Go on: phalanx resume {self._paths.id}",
                )
                continue
            for file, data in pieces.items():
                append(self._paths.folder / file, data)
                self._offsets[rank][file] += len(data)
            if code is not None and not pieces:  # first all that it wrote
                self._codes[rank] = code
        now = time.monotonic()
        if now - self._last >= _EVERY:
            self._last = now
            for rank in {*range(len(self._actors))} - {*self._asked, *self._codes, *self._lost}:
                self._asked[rank] = self._actors[rank].poll.remote(self._offsets[rank])

    def codes(self) -> dict[int, int]:
        return dict(self._codes)

    def lost(self) -> dict[int, MachineError]:
        return dict(self._lost)

    def news(self) -> list[str]:
        taken, self._news = self._news, []
        return taken

    def stop(self, grace: float, hurry: Callable[[], bool] = never) -> None:
        self._steps = iter(())  # whatever is not started stays so
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _AFTER_KILL)):
            if self._started and not self._have_ended():
                for actor in self._actors:
                    actor.signal.remote(int(number))
                await_end(self._have_ended, seconds, hurry if seconds == grace else never)

    def _have_ended(self) -> bool:
        self._look()
        return len({*self._codes, *self._lost}) == len(self._actors)

    def finish(self, say: Say, hurry: Callable[[], bool]) -> None:
        if self._ray is None or not self._ray.is_initialized():
            return
        with contextlib.suppress(self._ray.exceptions.RayError, OSError):
            self._bring_home(hurry)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            importlib.import_module("ray.util.placement_group").remove_placement_group(self._group)
        self._disconnect()

    def _bring_home(self, hurry: Callable[[], bool]) -> None:
        """From nodes that do not see the run's folder: what has not been fetched as it grew."""
        seen: set[str] = set()
        for rank, actor in enumerate(self._actors if self._shared else ()):
            name = self._notes[rank].node
            away = not self._shared[rank] and name not in seen and rank not in self._lost
            seen.add(name)
            if away and self._paths is not None:
                fetched = {file for offsets in self._offsets for file in offsets}
                bring_home(self._ray, actor, self._paths, fetched, hurry)

    def _disconnect(self) -> None:
        self._ray.shutdown()
        if self._token is not None:
            self._token.unlink(missing_ok=True)

    def processes(self) -> list[int]:
        return []  # the actors read what their workers use

    def samples(self, launch: Launch, paths: RunPaths) -> list[MachineSamples]:
        return [NodeSamples(paths)]
