"""Asks an agent for the facts of its machine: cores, memory, GPUs, addresses, clock."""

from __future__ import annotations

import time

import msgspec

from phalanx.launch.link.agent_link import AgentLink
from phalanx.launch.link.agent_loss import talks_otherwise
from phalanx.launch.link.clocks import SKEW_WARNING, clock_words
from phalanx.pool.here import Facts, fitted
from phalanx.pool.machine import Machine
from phalanx.pool.machine_facts import MachineFacts


async def ask_facts(link: AgentLink, timeout: float) -> tuple[MachineFacts, float]:
    """Return the machine's facts, and the seconds that its wall clock is ahead of ours."""
    answer = await link.ask("facts", timeout=timeout)
    arrived = time.time()
    try:
        facts = msgspec.convert(answer, MachineFacts)
    except msgspec.ValidationError as error:
        raise talks_otherwise(link.machine, str(error)) from None
    return facts, facts.wall - arrived  # ignores the milliseconds that the answer took


def as_found(machine: Machine, facts: MachineFacts, skew: float) -> tuple[Machine, list[str]]:
    """Return ``machine`` with what ``facts`` show, and remarks on what differs in the blueprint."""
    gpus = len(facts.gpus)
    known = Facts(facts.cores, tuple(facts.cpu_ids), facts.memory or 0, gpus, gpus)
    found, remarks = fitted(machine, known)
    if abs(skew) > SKEW_WARNING:
        remarks.append(f"{clock_words(machine.name, skew)}; the run's times are corrected")
    return found, remarks
