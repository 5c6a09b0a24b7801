"""The agent's entry, and the table of what it answers.

A module's ``HANDLERS`` are called in order, by the thread that also answers pings; those that it
names in ``SLOW`` get a thread of their own.
"""

from __future__ import annotations

import resource
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.agent import background, commands, life, ownership, tails, wire, workers
from phalanx.agent.frames import Problem, WrongFrame, pack, unpack
from phalanx.agent.guard import guarded
from phalanx.agent.machine import facts, inspect_python, ports, reach, sampling
from phalanx.agent.storage import (
    blobs,
    datasets,
)
from phalanx.agent.storage import (
    environments as environment,
)
from phalanx.agent.storage import (
    folders as files,
)
from phalanx.agent.storage import (
    run_results as results,
)
from phalanx.agent.storage import (
    saved_checkpoints as saved,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[["Agent", dict[str, Any], bytes], "dict[str, Any] | None"]

MODULES: tuple[Any, ...] = (
    blobs,
    commands,
    datasets,
    environment,
    facts,
    files,
    inspect_python,
    life,
    ports,
    reach,
    results,
    sampling,
    saved,
    tails,
    workers,
)

HANDLERS: dict[str, Handler] = {
    name: handler for module in MODULES for name, handler in module.HANDLERS.items()
}
SLOW = {name for module in MODULES for name in getattr(module, "SLOW", ())}
FIRST_SECONDS = 30.0


class Agent:
    """One machine of a run, as the handlers know it."""

    def __init__(self) -> None:
        self.name = ""
        self.folder = Path()
        self.run_folder: Path | None = None
        self.patience = life.PATIENCE
        self.hold = 0.0
        """Seconds that the controller tries to come back when it was silent; 0: it does not."""
        self.bound = False
        """Whether the end of the controller that is here now is the end of the run."""
        self.ending = False
        self.bell = wire.Bell()
        self.connection: wire.Connection | None = None
        self.workers = workers.Workers()
        self.tails = tails.Tails()
        self.saved = ""
        """The newest checkpoint that the controller has heard of."""
        self.told: set[int] = set()
        """Ranks whose end the controller knows."""
        self._looking = threading.Lock()

    @property
    def began(self) -> bool:
        return bool(self.workers.codes or self.workers.pids)

    def send(self, header: dict[str, Any], payload: bytes = b"", *, urgent: bool = False) -> None:
        """To the controller; lost when there is none."""
        connection = self.connection
        if connection is not None:
            connection.send(header, payload, urgent=urgent)

    def tell(self, name: str, **fields: Any) -> None:
        self.send({"tell": name, **fields})

    def answer(self, request: dict[str, Any], payload: bytes) -> None:
        """Do what is asked; slow things go on while the next request is read."""
        name = request.get("ask")
        if not isinstance(name, str) or not isinstance(request.get("id", 0), int):
            raise WrongFrame("a frame asks nothing")
        if name in SLOW:
            work = threading.Thread(target=self._handle, args=(name, request, payload), daemon=True)
            work.start()
        else:
            self._handle(name, request, payload)

    def _handle(self, name: str, request: dict[str, Any], payload: bytes) -> None:
        number = request.get("id")
        try:
            if name not in HANDLERS:
                raise Problem(f"the agent does not know '{name[:100]}'")
            fields = HANDLERS[name](self, request, payload)
            if number is not None:
                self.send({"answer": number, **(fields or {})})
        except Problem as problem:
            self._refuse(number, problem.cause, problem.remedy)
        except Exception as error:
            traceback.print_exc()
            self._refuse(number, f"{name} failed: {type(error).__name__}: {error}"[:500], "")

    def _refuse(self, number: int | None, cause: str, remedy: str) -> None:
        if number is None:
            self.tell("note", text=cause)
        else:
            self.send({"problem": number, "cause": cause, "remedy": remedy})

    def stop_workers(self, grace: float) -> None:
        self.workers.stop(grace)
        self.look_after_workers()

    def look_after_workers(self) -> None:
        """Send what they wrote, and then who has ended."""
        self.workers.reap()
        with self._looking:
            self._tell_of_workers()

    def _tell_of_workers(self) -> None:
        connection = self.connection
        if connection is None:
            return
        self.tails.pump(connection)
        saved.tell_newest(self)
        for rank, code in list(self.workers.codes.items()):
            if rank not in self.told and self.tails.drained(rank):
                self.told.add(rank)
                self.tell("exited", rank=rank, code=code)


def main() -> int:
    """Read the first frame, which says in which way to live."""
    ownership.be_private()
    # The run's key passes through here: no crash leaves an image of it, nor of the workers.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        first = unpack(lambda count: wire.read_exactly(0, count, FIRST_SECONDS))
        header = first[0]
        if header.get("ask") != "hello":
            raise WrongFrame("a frame does not say hello")
        if header.get("attach"):
            return background.relay(header)
        if header.get("detach"):
            return background.go(lambda: new_agent(header), header)
        background.make_way(header)
        return guarded(lambda: life.live(new_agent(header), first, background.stay))
    except Problem as problem:
        refusal = {"problem": header.get("id"), "cause": problem.cause, "remedy": problem.remedy}
        wire.write_all(1, pack(refusal))
        return 1
    except wire.Gone:
        return 0
    except WrongFrame as wrong:
        print(wrong, file=sys.stderr, flush=True)
        return life.WRONG_FRAME_CODE


def new_agent(hello: dict[str, Any]) -> Agent:
    agent = Agent()
    patience = hello.get("patience")
    if isinstance(patience, (int, float)) and patience > 0:
        agent.patience = float(patience)
    return agent
