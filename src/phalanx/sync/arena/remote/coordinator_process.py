"""The coordinator of a training on several machines, as a process of its own.

It reads its orders from one line of JSON on its standard input, which keeps the key out of process
lists, and writes its port as one line of JSON to its standard output. It ends when all workers
have left, or soon after its input closes, that is, when the process that started it has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_key import RunKey

GRACE_SECONDS = 5.0
"""Seconds for the workers to leave, once the process that started the coordinator has ended."""


class CoordinatorOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    address: str
    port: int
    processes: int
    tls: bool = False
    members: tuple[str, ...] = ()
    """Addresses of the run's machines."""


def main() -> int:
    from phalanx.sync.arena.remote.coordinator import Coordinator
    from phalanx.sync.arena.remote.coordinator_messages import COORDINATOR
    from phalanx.sync.connect.listener import Listener

    orders = msgspec.json.decode(sys.stdin.buffer.readline(65536), type=CoordinatorOrders)
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends after its clients
        signal.signal(number, signal.SIG_IGN)
    try:
        listener = Listener(
            orders.address, RunKey.from_text(orders.key), port=orders.port, tls=orders.tls,
            name=COORDINATOR, members=orders.members,
        )  # fmt: skip
    except (OSError, InputError) as error:
        print(json.dumps({"problem": str(error)}), flush=True)
        return 2
    left: list[float] = []
    threading.Thread(target=_watch_input, args=(left,), daemon=True).start()
    print(json.dumps({"port": listener.port}), flush=True)

    def going_on() -> bool:
        return not left or time.monotonic() - left[0] < GRACE_SECONDS

    Coordinator(listener, orders.processes).serve(going_on)
    return 0


def _watch_input(left: list[float]) -> None:
    while os.read(sys.stdin.fileno(), 65536):
        pass
    left.append(time.monotonic())


def start_coordinator(orders: CoordinatorOrders) -> tuple[subprocess.Popen[bytes], int]:
    """Start a coordinator on this machine; return its process and its port."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "phalanx.sync.arena.remote.coordinator_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(msgspec.json.encode(orders) + b"\n")
    child.stdin.flush()
    answer = json.loads(child.stdout.readline() or b"{}")
    if "port" not in answer:
        raise InputError(
            f"the coordinator cannot start at {orders.address}:{orders.port}: "
            f"{answer.get('problem', 'its process did not start')}",
            "Set PHALANX_PORT to another port, the same for all processes.",
        )
    port: int = answer["port"]
    return child, port


if __name__ == "__main__":
    sys.exit(main())
