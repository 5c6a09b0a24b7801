"""``python -m phalanx.sync.store.remote.serve_store``: one server of the parameter store.

Its orders are one line of JSON on its standard input, which keeps the key out of
process lists and environments, says its port by one line on its standard output, and ends when
its input closes, when its parent dies, or, without a parent, on SIGTERM.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
from typing import NoReturn

import msgspec

_PR_SET_PDEATHSIG = 1


class StoreOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    address: str
    port: int = 0
    tls: bool = False
    parent: int = 0
    members: tuple[str, ...] = ()


def main() -> None:
    orders = msgspec.json.decode(sys.stdin.buffer.readline(65536), type=StoreOrders)
    die_with(orders.parent)
    # Asked to stop together with its workers, it is still needed: they save first, and then end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if orders.parent else _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to answer
    # Torch takes seconds to import: only once this process is tied to its parent.
    import torch

    from phalanx.core.run_folder.run_key import RunKey
    from phalanx.sync.connect.listener import Listener
    from phalanx.sync.store.remote.store_server import StoreServer

    torch.set_num_threads(1)
    key = RunKey.from_text(orders.key)
    listener = Listener(
        orders.address, key, port=orders.port, tls=orders.tls, members=orders.members
    )
    threading.Thread(target=_end_with_input, daemon=True).start()
    print(json.dumps({"port": listener.port}), flush=True)
    StoreServer(listener).serve(ended=lambda: False)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` (0: none) is gone."""
    if not parent or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        _end()


def _end_with_input() -> None:
    while True:
        select.select([sys.stdin.buffer], [], [])
        if not os.read(sys.stdin.fileno(), 65536):
            _end()


def _end(*_: object) -> NoReturn:
    # At once: other threads may be in the middle of an update that is not needed any more.
    os._exit(0)


if __name__ == "__main__":
    main()
