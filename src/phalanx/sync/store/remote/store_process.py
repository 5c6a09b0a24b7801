"""Starts a server of the parameter store on this machine."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from types import TracebackType

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_key import RunKey

_PATIENCE = 60.0
COMMAND = (sys.executable, "-P", "-m", "phalanx.sync.store.remote.serve_store")


def orders(key: RunKey, address: str, **more: object) -> bytes:
    """The line that a server reads from its standard input (``serve_store.StoreOrders``)."""
    return json.dumps({"key": key.text(), "address": address, **more}).encode() + b"\n"


class ServerProcess:
    """Ends with the thread that made it (so the kernel has it), or when closed.

    Making one returns at once; asking for its ``port`` waits until it listens.
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
        more = {"port": port, "tls": tls, "parent": os.getpid(), "members": list(members)}
        self._process.stdin.write(orders(key, address, **more))
        self._process.stdin.flush()
        self.address = address

    @cached_property
    def port(self) -> int:
        stream = self._process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], _PATIENCE)
        line = stream.readline() if ready else b""
        if not line:
            self.close()
            raise MachineError("a parameter server did not start", "See what it printed above.")
        return int(json.loads(line)["port"])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10.0)

    def close(self) -> int:
        """Ask it to end; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return int(self._process.returncode)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
