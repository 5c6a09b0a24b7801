"""Requests about a run on this machine: start and stop workers, follow logs, sample, switch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem, field, inside
from phalanx.agent.machine.sampling import KeptSamples, Sampler, tell_all
from phalanx.agent.workers import CONTROLLER, STARTED

SWITCH = "switch.json"
"""The file in the run's folder where the first worker looks for a switch."""
LONGEST_SWITCH = 64 << 10


def start(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    folder = agent.run_folder
    if folder is None:
        raise RequestProblem("no run is open on this agent")
    pids = {}
    for orders in field(request, "workers", list):
        if not isinstance(orders, dict):
            raise RequestProblem("invalid worker in the start request")
        rank = field(orders, "rank", int)
        if rank in agent.workers.pids:
            raise RequestProblem(f"rank {rank} is already running")
        pids[rank] = _start_one(agent, folder, rank, orders)
    return {"pids": pids}


def _start_one(agent: Agent, folder: Path, rank: int, orders: dict[str, Any]) -> int:
    words = field(orders, "argv", list)
    log = field(orders, "log", str, f"logs/rank-{rank}.log")
    cwd = str(folder / field(orders, "cwd", str, "."))
    file = inside(folder, log)
    if not words:
        raise RequestProblem(f"cannot start rank {rank}: no program")
    agent.logs.follow(folder, rank, log)
    agent.told.discard(rank)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        changes = field(orders, "env", dict, {})
        env = {**os.environ, STARTED: repr(time.monotonic()), CONTROLLER: str(os.getpid())}
        for name, value in changes.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return agent.workers.spawn(rank, words, env, cwd, file)
    except (OSError, ValueError, TypeError) as error:
        raise RequestProblem(f"cannot start rank {rank}: {error}") from None


def stop(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    agent.stop_workers(float(field(request, "grace", (int, float), 2.0)))
    return {}


def resume_tails(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    agent.logs.resume(field(request, "offsets", dict, {}))
    agent.told.clear()
    return {}


def switch(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    text = field(request, "request", str)
    if agent.run_folder is None or len(text) > LONGEST_SWITCH:
        raise RequestProblem("no run on this machine can be switched")
    part = agent.run_folder / (SWITCH + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(agent.run_folder / SWITCH)
    return {}


def sample(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Start or stop sending samples of the machine; asking twice does no harm.

    With ``keep``, they are written to the run's folder too. With ``after``, kept ones that are
    later than this moment are sent first.
    """
    on, after = field(request, "on", bool), _moment(request)
    sampler = agent.sampler
    if on:
        if sampler is None:
            sampler = agent.sampler = Sampler(
                agent.workers, lambda: agent.connection, _kept(agent, request)
            )
        sampler.tell_to(agent.connection, after)
    elif sampler is not None:
        agent.sampler = None
        sampler.stop()
    return {}


def kept_samples(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Send the samples that an agent which has ended kept in the run's folder."""
    after, hearer = _moment(request), agent.connection
    if hearer is not None and agent.run_folder is not None and after is not None:
        tell_all(hearer, KeptSamples(agent.run_folder), after)
    return {}


def _moment(request: dict[str, Any]) -> float | None:
    given = request.get("after") is not None
    return float(field(request, "after", (int, float))) if given else None


def _kept(agent: Agent, request: dict[str, Any]) -> KeptSamples | None:
    if not field(request, "keep", bool, False) or agent.run_folder is None:
        return None
    kept = KeptSamples(agent.run_folder)
    kept.begin()
    return kept
