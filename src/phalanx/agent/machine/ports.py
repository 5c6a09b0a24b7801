"""Free ports of the machine."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

from phalanx.agent.frames import RequestProblem, field

if TYPE_CHECKING:
    from phalanx.agent.agent import Agent

MOST_PORTS = 1024


def free_ports(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """``count`` different ports of ``address``, held together so that they differ."""
    address, count = field(request, "address", str), field(request, "count", int)
    if not 0 <= count <= MOST_PORTS:
        raise RequestProblem(f"{count} ports cannot be reserved")
    try:
        with contextlib.ExitStack() as held:
            return {"ports": [free_port(held, address) for _ in range(count)]}
    except OSError as error:
        raise RequestProblem(
            f"cannot listen on {address}: {error.strerror or error}",
            "Set 'address' in the blueprint to an address of that machine.",
        ) from None


def free_port(held: contextlib.ExitStack, address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.bind((address, 0))
    return int(listener.getsockname()[1])


HANDLERS = {"free_ports": free_ports}
