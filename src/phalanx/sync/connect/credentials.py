"""What a process needs to reach the others and to be reached."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect.dispatcher import Dispatcher


@dataclass(frozen=True)
class Credentials:
    key: RunKey
    address: str
    """Of this machine, from the pool: what is listened on and connected from."""
    dispatcher: Dispatcher
    tls: bool = False
