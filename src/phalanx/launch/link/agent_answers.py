"""What comes from an agent: answers to requests, and what it sends unasked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from phalanx.core.errors import MachineError

Reply = tuple[dict[str, Any], bytes]
Taker = Callable[[str, dict[str, Any], bytes], bool]
"""Whether what the agent sent was for it."""


class AgentRefused(MachineError):  # noqa: N818  (what was answered)
    """The agent says why it does not do what it is asked."""


def fail(waiting: asyncio.Future[Reply] | None, error: MachineError) -> None:
    """Fail a request with ``error``, unless nobody waits for its answer any more."""
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)


class AgentListener:
    """What a link notices unasked; does nothing until overridden."""

    def on_tell(self, name: str, fields: dict[str, Any], payload: bytes) -> None:
        """The agent sent something that was not an answer."""

    def on_lost(self, error: MachineError) -> None:
        """The agent is gone; not called while it is closed."""

    def on_gap(self, seconds: float) -> None:
        """This computer itself did not run for ``seconds``, as when it was asleep."""

    def say(self, text: str) -> None:
        """Show the user ``text`` while a request takes long."""
