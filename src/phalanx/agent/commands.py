"""What the user asks of a run while it goes on, laid where the first worker looks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.agent.frames import Problem, field

if TYPE_CHECKING:
    from phalanx.agent.main import Agent

SWITCH = "switch.json"
MOST = 64 << 10


def switch(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    text = field(request, "request", str)
    if agent.run_folder is None or len(text) > MOST:
        raise Problem("there is no run that could be switched")
    part = agent.run_folder / (SWITCH + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(agent.run_folder / SWITCH)
    return {}


HANDLERS = {"switch": switch}
