"""Logs in to all machines of a pool, and tests what they have and which others they reach."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from phalanx.core.errors import MachineError, PhalanxError
from phalanx.core.terminal import Say
from phalanx.launch.link.agent_facts import ask_facts
from phalanx.launch.link.agent_link import AgentLink, open_agent
from phalanx.launch.machines.addresses import address_for_others, own_address
from phalanx.pool.machine import Machine
from phalanx.pool.machine_facts import MachineFacts

START_SECONDS = 30.0
ANSWER_SECONDS = 60.0
KNOCK_SECONDS = 3.0
PACKAGES = ("torch", "phalanx-train")


@dataclass
class Visit:
    """What was found on one machine, as far as it could be reached."""

    machine: Machine
    error: PhalanxError | None = None
    facts: MachineFacts | None = None
    python: str | None = None
    """The version of the Python on which workers would run."""
    torch: str | None = None
    python_error: PhalanxError | None = None
    skew: float | None = None
    """Seconds that the machine's wall clock is ahead of ours."""
    address: str | None = None
    """The address at which other machines reach this one."""
    listen_error: PhalanxError | None = None


@dataclass(frozen=True)
class Knock:
    """An attempt of one machine to connect to another, and its result."""

    source: str
    target: str
    ok: bool
    why: str = ""


@dataclass
class Check:
    visits: list[Visit]
    knocks: list[Knock] = field(default_factory=list)

    def visit(self, name: str) -> Visit:
        return next(each for each in self.visits if each.machine.name == name)


async def check_pool(machines: Sequence[Machine], say: Say = lambda _: None) -> Check:
    """Visit all machines and test the connections between them; record failures, raise none."""
    check = Check([Visit(machine) for machine in machines])
    async with AsyncExitStack() as stack:
        say(f"connecting to {len(machines)} machines")
        links = await asyncio.gather(*(_visit(stack, each) for each in check.visits))
        reached = {each.machine.name: link for each, link in zip(check.visits, links, strict=True)}
        open_links = {name: link for name, link in reached.items() if link is not None}
        say("testing connections between machines")
        await _meet(check, open_links)
    return check


async def _visit(stack: AsyncExitStack, visit: Visit) -> AgentLink | None:
    machine = visit.machine
    try:
        link = await open_agent(machine, run=None, timeout=START_SECONDS)
        await stack.enter_async_context(link)
        await see(link, visit)
    except PhalanxError as error:
        visit.error = error
        return None
    return link


async def see(link: AgentLink, visit: Visit) -> None:
    """Ask for the machine's facts, and for the packages of its Python."""
    visit.facts, visit.skew = await ask_facts(link, ANSWER_SECONDS)
    await _inspect(link, visit)


async def _inspect(link: AgentLink, visit: Visit) -> None:
    machine = visit.machine
    asked: dict[str, Any] = {"python": machine.interpreter, "packages": list(PACKAGES)}
    try:
        found = await link.ask("inspect", timeout=ANSWER_SECONDS, **asked)
        visit.python = str(found["version"])[:40]
        torch = found["packages"].get("torch")
        visit.torch = None if torch is None else str(torch)[:40]
    except (KeyError, AttributeError):
        visit.python_error = MachineError(f"{machine.name}: its Python gave an unexpected answer")
    except PhalanxError as error:
        if link.lost is not None:
            raise
        visit.python_error = error


async def _meet(check: Check, links: dict[str, AgentLink]) -> None:
    """Test all connections: each machine listens, and all others connect to it."""
    ours = own_address([link.reached_from for link in links.values()])
    doors: dict[str, tuple[str, int, str]] = {}

    async def listen(name: str, link: AgentLink) -> None:
        visit = check.visit(name)
        assert visit.facts is not None
        reached_at = ours if visit.machine.is_here else link.address
        visit.address = address_for_others(visit.machine, visit.facts, reached_at)
        try:
            answer = await link.ask("listen", address=visit.address, timeout=ANSWER_SECONDS)
            doors[name] = visit.address, int(answer["port"]), str(answer["token"])
        except (KeyError, ValueError):
            visit.listen_error = MachineError(f"{name} did not report its port")
        except PhalanxError as error:
            visit.listen_error = error

    await asyncio.gather(*(listen(name, link) for name, link in links.items()))
    pairs = [(a, b) for a, b in permutations(links, 2) if b in doors]
    found = await asyncio.gather(*(_knock(links[a], a, b, doors[b]) for a, b in pairs))
    check.knocks += found


async def _knock(link: AgentLink, source: str, target: str, door: tuple[str, int, str]) -> Knock:
    address, port, token = door
    try:
        answer = await link.ask(
            "reach", address=address, port=port, seconds=KNOCK_SECONDS, timeout=ANSWER_SECONDS
        )
    except PhalanxError as error:
        return Knock(source, target, False, error.cause)
    if not answer.get("ok"):
        return Knock(source, target, False, str(answer.get("why"))[:200])
    if answer.get("token") != token:
        return Knock(source, target, False, f"another machine answers at {address}")
    return Knock(source, target, True)
