"""Lets a process that a cluster's launcher started join a training on several machines."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from phalanx.core import hosts_settings as names
from phalanx.core import settings, stopping
from phalanx.core.addresses import own_addresses
from phalanx.core.errors import InputError, MachineLost, PhalanxError
from phalanx.core.run_folder.agreed_run import agreed_run
from phalanx.core.run_folder.run_key import KEY_VARIABLE, RunKey, key_from
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.pool.measured import link_rates, read_probe
from phalanx.sync.arena.remote.coordinator_messages import Ending, Hello
from phalanx.sync.arena.remote.coordinator_process import CoordinatorOrders, start_coordinator
from phalanx.sync.arena.remote.remote_arena import RemoteArena
from phalanx.sync.connect.channel import ConnectionEnded
from phalanx.sync.connect.listener import Listener
from phalanx.sync.hosts.membership import become_worker, greet, host_id
from phalanx.sync.hosts.servers import ServerRequest
from phalanx.sync.store.remote.store_session import serve_stores
from phalanx.train.start.launcher_env import Seat, own_seat
from phalanx.train.start.own_address import machine_of, meeting_address, own_address

LEAVE_SECONDS = 10.0


@dataclass(frozen=True)
class Ticket:
    """All that a process needs to join a run."""

    seat: Seat
    key: RunKey
    machine: str
    address: str
    """The address at which other machines reach this one."""
    meet_at: str
    tls: bool
    server_request: ServerRequest
    members: tuple[str, ...] = ()
    """The known addresses of the run's machines."""


def ticket_of(seat: Seat, variables: Mapping[str, str]) -> Ticket:
    key, ours = key_from(variables), seat.launcher == "phalanx"
    if key is None:
        raise InputError(
            "this run has no key by which its workers authenticate",
            "Make one: phalanx worker --new-key FILE; set PHALANX_KEY_FILE to it on all machines.",
        )
    path, pool = None if ours else variables.get(names.POOL), None
    links = _told_links(variables) if ours else {}
    if path:
        # Most workers read no blueprint, and this import takes as long as all others.
        from phalanx.pool.blueprint import read_blueprint

        pool, probe = read_blueprint(Path(path)), read_probe(Path(path))
        links = link_rates(probe) if probe else {}
    hostname, addresses = os.uname().nodename, own_addresses()
    address = own_address(variables, pool, hostname, seat.meet_at, addresses=addresses)
    machine = machine_of(pool, hostname, addresses) if pool else None
    # The members are those that the launcher names, or else those of the blueprint.
    given = tuple(filter(None, variables.get(names.MEMBERS, "").split(",")))
    return Ticket(
        seat,
        key,
        machine.name if machine else seat.machine,
        address,
        meeting_address(seat.meet_at, pool),
        tls=variables.get(names.TLS) == "1" if ours else bool(pool and pool.tls),
        server_request=ServerRequest(_servers(variables), links),
        members=given or tuple(m.address or m.host for m in (pool.machines if pool else ())),
    )


def _servers(variables: Mapping[str, str]) -> int | list[str] | None:
    """Return how many parameter servers there are, or the names of their machines."""
    text = variables.get(names.SERVERS, "").strip()
    if text.isdecimal():
        return int(text)
    return [name.strip() for name in text.split(",") if name.strip()] or None


def _told_links(variables: Mapping[str, str]) -> dict[str, float]:
    """Return the rate of each machine's slowest link, as the launcher gives it."""
    text = variables.get(names.LINKS)
    try:
        return msgspec.json.decode(text, type=dict[str, float]) if text else {}
    except msgspec.DecodeError as error:
        raise InputError(f"{names.LINKS} cannot be read: {error}", "Unset it.") from None


@cache
def take_seat(seat: Seat) -> RemoteArena:
    """Become a worker: once in a process, which may train several models, one after another."""
    ticket = ticket_of(seat, os.environ)
    os.environ.pop(KEY_VARIABLE, None)  # processes that this one starts must not have the key
    keeper = _keep_coordinator(ticket) if seat.process == 0 else None
    arena = become_worker(
        (ticket.meet_at, seat.port),
        ticket.key,
        process=seat.process,
        processes=seat.processes,
        machine=ticket.machine,
        address=ticket.address,
        tls=ticket.tls,
        request=ticket.server_request,
        members=ticket.members,
    )
    words = run_folder(seat, os.environ).traceback_of(seat.process)
    atexit.register(_leave, arena, keeper, words)
    return arena


def _keep_coordinator(ticket: Ticket) -> subprocess.Popen[bytes]:
    seat = ticket.seat
    orders = CoordinatorOrders(
        ticket.key.text(), ticket.address, seat.port, seat.processes, ticket.tls, ticket.members
    )
    return start_coordinator(orders)[0]


def _leave(arena: RemoteArena, keeper: subprocess.Popen[bytes] | None, words: Path) -> None:
    """Tell the other workers at exit whether this process ended in good order."""
    well = not arena.training
    with suppress(PhalanxError, OSError):
        if arena.hosts is not None:
            arena.hosts.close()
    with suppress(PhalanxError, OSError):
        arena.close(*(Ending.FINISHED, "") if well else _ending(words))
    if keeper is not None and keeper.stdin is not None:
        keeper.stdin.close()  # the coordinator ends soon, at once if the others have left
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(LEAVE_SECONDS if well else 0.0)


def _ending(path: Path) -> tuple[Ending, str]:
    """Return how this process failed, with the reason in one line if its traceback file says it."""
    if stopping.asked():
        return Ending.STOPPED, ""
    with suppress(OSError, IndexError):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return Ending.FAILED, lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return Ending.VANISHED, ""


def device_of(arena: RemoteArena) -> torch.device:
    """Return a worker's device: workers of a machine take its GPUs in turn, or else its cores."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", arena.host.rank % torch.cuda.device_count())


def run_folder(seat: Seat, variables: Mapping[str, str]) -> RunPaths:
    told = variables.get(settings.RUN_FOLDER)
    if told:
        return RunPaths(Path(told))
    return agreed_run(f"{seat.launcher}-{seat.run}", seat.launcher)


def serve(seat: Seat) -> NoReturn:
    """Act as a parameter server until all workers have left; then end the process."""
    ticket = ticket_of(seat, os.environ)
    torch.set_num_threads(1)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    if seat.launcher == "phalanx":
        # Keep serving: workers may get the same signal, and save before they end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keeper = _keep_coordinator(ticket) if seat.process == 0 else None
    listener = Listener(ticket.address, ticket.key, tls=ticket.tls, members=ticket.members)
    hello = Hello(
        seat.process, seat.processes, ticket.machine, ticket.address, listener.port, host_id(),
        serves=True,
    )  # fmt: skip
    serving = threading.Thread(target=serve_stores, args=(listener, ended.is_set), daemon=True)
    serving.start()
    channel, welcome = greet((ticket.meet_at, seat.port), ticket.key, hello, tls=ticket.tls)
    listener.expect_from(w.address for w in welcome.workers)
    code = 0
    try:
        while not ended.is_set():  # the coordinator ends it when the last worker has left
            if channel.poll(0.5):
                channel.skip(channel.receive()[1])
    except ConnectionEnded:
        pass
    except MachineLost as lost:
        print(f"error: {lost.cause}", file=sys.stderr, flush=True)
        code = lost.exit_code
    ended.set()
    serving.join(LEAVE_SECONDS)
    if keeper is not None and keeper.stdin is not None:
        keeper.stdin.close()
    os._exit(code)  # a client's thread in torch would abort an orderly exit


if __name__ == "__main__":  # Phalanx's launcher starts a server this way
    own = own_seat(os.environ)
    if own is None:
        raise SystemExit("error: this program is started by a launcher of Phalanx, not by hand")
    serve(own)
