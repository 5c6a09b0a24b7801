"""What a machine says it is, asked through its agent."""

from __future__ import annotations

import time

import msgspec

from phalanx.launch.machines.agent_link import AgentLink
from phalanx.launch.machines.agent_loss import talks_otherwise
from phalanx.pool.machine_facts import MachineFacts, facts_of


async def ask_facts(link: AgentLink, timeout: float) -> tuple[MachineFacts, float]:
    """Also the seconds that its wall clock is ahead of ours."""
    answer = await link.ask("facts", timeout=timeout)
    arrived = time.time()
    try:
        facts = facts_of(answer)
    except msgspec.ValidationError as error:
        raise talks_otherwise(link.machine, str(error)) from None
    return facts, facts.wall - arrived  # short of the answer's way: milliseconds
