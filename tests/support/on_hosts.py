"""Runs a function as ranks on several hosts: threads that meet over real connections.

Each host is a group of threads with shared memory of its own; hosts reach each other through the
home, links and servers only, on loopback or each from within the network of a lab machine.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from phalanx.core.errors import PhalanxError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.arena.remote.coordinator import Coordinator
from phalanx.sync.arena.remote.coordinator_messages import COORDINATOR, Ending, Hello
from phalanx.sync.arena.remote.remote_arena import RemoteArena
from phalanx.sync.connect.listener import Listener
from phalanx.sync.hosts.membership import become_worker, greet
from phalanx.sync.hosts.servers import Server
from phalanx.sync.store.remote.store_process import ServerProcess

LIMIT = 200.0


class Killed(BaseException):
    """Raised where a worker is to die, as a process does: without a word to anybody."""


HOSTS = int(os.environ.get("PHALANX_TEST_HOSTS", "0"))
"""Contract suites run their ranks on so many hosts; 0 is one, in scripted time."""
_CLONE_NEWNET = 0x40000000


class Place:
    """Where a host is: an address, and a network namespace if it is not this one."""

    def __init__(self, address: str = "127.0.0.1", namespace: str | None = None) -> None:
        self.address, self._namespace = address, namespace

    def enter(self) -> None:
        """Only the calling thread moves there, with the sockets and processes it makes."""
        if self._namespace is None:
            return
        descriptor = os.open(self._namespace, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)


def places() -> list[Place]:
    """Those of PHALANX_TEST_PLACES (address=namespace, …): the machines of a lab."""
    given = os.environ.get("PHALANX_TEST_PLACES", "")
    found = [Place(*part.split("=", 1)) for part in given.split(",") if part]
    return found or [Place() for _ in range(HOSTS)]


def spread(workers: int, hosts: int) -> list[int]:
    """The host of each rank: as even as it goes, the first ones have more."""
    counts = [workers // hosts + (i < workers % hosts) for i in range(hosts)]
    return [host for host, count in enumerate(counts) for _ in range(count)]


KEY = RunKey.new()
_times = itertools.count(1)
_servers: dict[str, Server] = {}


def server_at(place: Place) -> Server:
    """A parameter server for all tests: starting one takes seconds."""
    if place.address not in _servers:
        started: list[int] = []

        def start() -> None:
            place.enter()
            started.append(ServerProcess(KEY, place.address).port)
            ready.set()
            threading.Event().wait()  # the server dies with the thread that started it

        ready = threading.Event()
        threading.Thread(target=start, daemon=True).start()
        assert ready.wait(60.0)
        _servers[place.address] = Server("m-server", place.address, started[0])
    return _servers[place.address]


def _stand_for(
    server: Server, places: Sequence[Place], port: int, workers: int, over: threading.Event
) -> None:
    """Be the process that serves, as the coordinator sees it."""
    places[-1].enter()
    hello = Hello(
        workers, workers + 1, server.machine, server.address, server.port, "apart", serves=True
    )
    channel, _ = greet((places[0].address, port), KEY, hello, timeout=180)
    over.wait(2 * LIMIT)
    channel.close()


def _leave(arena: RemoteArena, *, in_good_order: bool) -> None:
    """What the end of a process does; hundreds of workers come and go in this one."""
    hosts = arena.hosts
    assert hosts is not None
    dispatcher = hosts._access.dispatcher
    for close in (hosts.close, dispatcher.close, dispatcher._listener.close):
        with suppress(PhalanxError, OSError):
            close()
    with suppress(PhalanxError, OSError):
        arena.close(Ending.FINISHED if in_good_order else Ending.VANISHED)


@contextmanager
def _forgotten_after() -> Iterator[None]:
    """What a worker leaves to the end of its process would keep its memory mapped until then."""
    left: list[Callable[..., Any]] = []
    register = atexit.register

    def recorded(action: Callable[..., Any], *given: Any, **named: Any) -> Callable[..., Any]:
        left.append(action)
        return register(action, *given, **named)

    atexit.register = recorded  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = register
        for action in left:
            atexit.unregister(action)
        if next(_times) % 20 == 0:
            gc.collect()  # each mapping has a file of its own, and there are never enough


@_forgotten_after()
def as_hosts(
    where: Sequence[int],
    work: Callable[[int, RemoteArena], Any],
    places: Sequence[Place] | None = None,
) -> list[Any]:
    """``work(rank, arena)`` on every rank; ``where[rank]`` is its host."""
    workers, key = len(where), KEY
    places = places or [Place() for _ in range(max(where) + 1)]
    server = server_at(places[-1])
    results: list[Any] = [None] * workers
    errors: list[BaseException] = []
    ready, over = threading.Event(), threading.Event()
    homes: list[Listener] = []

    def keep_home() -> None:
        places[where[0]].enter()
        homes.append(Listener(places[where[0]].address, key, name=COORDINATOR))
        ready.set()
        Coordinator(homes[0], workers + 1).serve(going_on=lambda: not over.is_set())

    def live(rank: int) -> None:
        place, arena, killed = places[where[rank]], None, False
        try:
            place.enter()
            arena = become_worker(
                (places[where[0]].address, homes[0].port), key, process=rank, processes=workers + 1,
                machine=f"m{where[rank]}", address=place.address, host=f"host{where[rank]}",
                timeout=30.0,
            )  # fmt: skip
            results[rank] = work(rank, arena)
        except Killed:
            killed = True
        except BaseException as error:
            errors.append(error)
        finally:
            if arena is not None:
                _leave(arena, in_good_order=not errors and not killed)

    home = threading.Thread(target=keep_home, daemon=True)
    home.start()
    assert ready.wait(10.0)
    serving = threading.Thread(
        target=_stand_for, args=(server, places, homes[0].port, workers, over), daemon=True
    )
    serving.start()
    threads = [threading.Thread(target=live, args=(r,), daemon=True) for r in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    hanging = any(thread.is_alive() for thread in threads)
    over.set()
    home.join(10.0)
    serving.join(10.0)
    if errors:
        raise errors[0]
    assert not hanging, "a rank hangs"
    return results
