"""Finds free ports, and tests whether machines reach each other: each listens for a while, and the
others connect.

A connection is sent a token, which shows which machine answered; nothing is read from it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from typing import Any

from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem, field

LISTEN_SECONDS = 60.0
MOST_SECONDS = 30.0
TOKEN_BYTES = 32
MOST_PORTS = 1024


def listen(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Listen on one address for a minute at most: ``{port, token}``."""
    address = field(request, "address", str)
    try:
        family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        door = socket.socket(family[0], socket.SOCK_STREAM)
        door.bind(family[4])
        door.listen(64)
    except (OSError, UnicodeError) as error:
        raise RequestProblem(
            f"cannot listen on {address}: {_words(error)}",
            "Set 'address' in the blueprint to an address of that machine.",
        ) from None
    token = secrets.token_hex(TOKEN_BYTES // 2)
    threading.Thread(target=_answer, args=(door, token), daemon=True).start()
    return {"port": door.getsockname()[1], "token": token}


def _answer(door: socket.socket, token: str) -> None:
    end = time.monotonic() + LISTEN_SECONDS
    with door:
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return
            door.settimeout(left)
            try:
                guest, _ = door.accept()
            except OSError:
                time.sleep(0.1)  # a lasting error (no descriptors) must not use a core
                continue
            with guest:
                guest.settimeout(1.0)
                try:
                    guest.sendall(token.encode())
                except OSError:
                    continue


def reach(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Connect to another machine: ``{ok, why, token}``."""
    address = field(request, "address", str)
    port = field(request, "port", int)
    seconds = min(float(field(request, "seconds", (int, float), 3.0)), MOST_SECONDS)
    try:
        with socket.create_connection((address, port), timeout=seconds) as door:
            shown = b""
            while len(shown) < TOKEN_BYTES:
                part = door.recv(TOKEN_BYTES - len(shown))
                if not part:
                    break
                shown += part
    except (OSError, UnicodeError, OverflowError) as error:
        return {"ok": False, "why": _words(error), "token": ""}
    return {"ok": True, "why": "", "token": shown.decode("ascii", "replace")}


def _words(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "no answer"
    number = getattr(error, "errno", None)
    if isinstance(error, OSError) and number and number > 0:
        return os.strerror(number).lower()
    return (str(error) or type(error).__name__)[:200]


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
