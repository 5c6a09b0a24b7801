"""The agent of one machine: its connection, run and workers. Its request handlers are given to it.

Handlers are called in order, by the thread that also answers pings; slow ones get a thread of
their own.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.agent.frames import InvalidFrame, RequestProblem
from phalanx.agent.log_forwarder import LogForwarder, finished_checkpoints
from phalanx.agent.machine.sampling import Sampler
from phalanx.agent.wire import Bell, Connection
from phalanx.agent.workers import Workers

if TYPE_CHECKING:
    Handler = Callable[["Agent", dict[str, Any], bytes], "dict[str, Any] | None"]

PATIENCE = 8.0
"""Seconds of silence after which a controller counts as gone."""


class Agent:
    """The state of one machine of a run, which the handlers read and change."""

    def __init__(self, handlers: dict[str, Handler], slow: Collection[str] = ()) -> None:
        self._handlers, self._slow = handlers, slow
        self.name = ""
        self.folder = Path()
        self.run_folder: Path | None = None
        self.patience = PATIENCE
        self.hold = 0.0
        """Seconds to wait for a controller that fell silent to come back; 0: it will not."""
        self.bound = False
        """Whether the run ends when the present controller ends."""
        self.ending = False
        self.bell = Bell()
        self.connection: Connection | None = None
        self.workers = Workers()
        self.logs = LogForwarder()
        self.saved = ""
        """The newest checkpoint that the controller has heard of."""
        self.sampler: Sampler | None = None
        self.told: set[int] = set()
        """Ranks whose end the controller has been told of."""
        self._looking = threading.Lock()

    @property
    def began(self) -> bool:
        return bool(self.workers.codes or self.workers.pids)

    def send(self, header: dict[str, Any], payload: bytes = b"", *, urgent: bool = False) -> None:
        """Send to the controller; while there is none, the message is lost."""
        connection = self.connection
        if connection is not None:
            connection.send(header, payload, urgent=urgent)

    def tell(self, name: str, **fields: Any) -> None:
        self.send({"tell": name, **fields})

    def answer(self, request: dict[str, Any], payload: bytes) -> None:
        """Do what is asked; slow requests run in a thread, while the next one is read."""
        name = request.get("ask")
        if not isinstance(name, str) or not isinstance(request.get("id", 0), int):
            raise InvalidFrame("a frame has no request")
        if name in self._slow:
            work = threading.Thread(target=self._handle, args=(name, request, payload), daemon=True)
            work.start()
        else:
            self._handle(name, request, payload)

    def _handle(self, name: str, request: dict[str, Any], payload: bytes) -> None:
        number = request.get("id")
        try:
            if name not in self._handlers:
                raise RequestProblem(f"unknown request '{name[:100]}'")
            fields = self._handlers[name](self, request, payload)
            if number is not None:
                self.send({"answer": number, **(fields or {})})
        except RequestProblem as problem:
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
        """Send the controller what the workers wrote, and then which of them have ended."""
        self.workers.reap()
        with self._looking:
            self._tell_of_workers()

    def _tell_of_workers(self) -> None:
        connection = self.connection
        if connection is None:
            return
        self.logs.pump(connection)
        newest = max(finished_checkpoints(self.run_folder), key=int, default="")
        if newest and newest != self.saved:
            self.saved = newest
            self.tell("saved", checkpoint=newest)
        for rank, code in list(self.workers.codes.items()):
            if rank not in self.told and self.logs.drained(rank):
                self.told.add(rank)
                self.tell("exited", rank=rank, code=code)
