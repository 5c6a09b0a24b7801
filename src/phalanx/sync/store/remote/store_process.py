"""One server of the parameter store, as a process of its own.

``python -m phalanx.sync.store.remote.store_process`` reads its orders from one line of JSON on its
standard input, which keeps the key out of process lists and environments, writes its port as one
line of JSON to its standard output, and ends when its input closes, when its parent dies, or,
without a parent, on SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import NoReturn

import msgspec

from phalanx.agent.system import die_with_parent, readable
from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_key import RunKey

_PATIENCE = 60.0
COMMAND = (sys.executable, "-P", "-m", "phalanx.sync.store.remote.store_process")


class StoreOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    address: str
    port: int = 0
    tls: bool = False
    parent: int = 0
    """The id of the process with which this one ends; 0: none."""
    members: tuple[str, ...] = ()


class ServerProcess:
    """A server process; the kernel ends it with the thread that started it, if ``close`` does not.

    The constructor returns at once; reading ``port`` waits until the server listens.
    """

    def __init__(
        self,
        key: RunKey,
        address: str,
        *,
        port: int = 0,
        tls: bool = False,
        members: Sequence[str] = (),
    ) -> None:
        self._process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stdin is not None
        orders = StoreOrders(key.text(), address, port, tls, os.getpid(), tuple(members))
        self._process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self._process.stdin.flush()
        self.address = address

    @cached_property
    def port(self) -> int:
        stream = self._process.stdout
        assert stream is not None
        line = stream.readline() if readable([stream.fileno()], _PATIENCE) else b""
        if not line:
            self.close()
            raise MachineError("a parameter server did not start", "See what it printed above.")
        return int(json.loads(line)["port"])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10.0)

    def close(self) -> int:
        """Ask the server to end; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return int(self._process.returncode)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    orders = msgspec.json.decode(sys.stdin.buffer.readline(65536), type=StoreOrders)
    if orders.parent:
        die_with_parent(orders.parent)
    # The workers may be asked to stop at the same time, and save before they end: wait for them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if orders.parent else _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller to handle
    # Torch takes seconds to import, so this process is tied to its parent first.
    import torch

    from phalanx.sync.connect.listener import Listener
    from phalanx.sync.state.skip_dynamo_import import without_compiler
    from phalanx.sync.store.remote.store_session import serve_stores

    torch.set_num_threads(1)
    without_compiler()
    key = RunKey.from_text(orders.key)
    listener = Listener(
        orders.address, key, port=orders.port, tls=orders.tls, members=orders.members
    )
    threading.Thread(target=_end_with_input, daemon=True).start()
    print(json.dumps({"port": listener.port}), flush=True)
    serve_stores(listener, ended=lambda: False)


def _end_with_input() -> None:
    while True:
        readable([sys.stdin.fileno()])
        if not os.read(sys.stdin.fileno(), 65536):
            _end()


def _end(*_: object) -> NoReturn:
    # End at once: updates that other threads may be making are not needed any more.
    os._exit(0)


if __name__ == "__main__":
    main()
