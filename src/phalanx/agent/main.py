"""The agent's entry, and the table of its answers: functions with the names of the requests."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING, Any

from phalanx.agent import background, life, ownership, run_requests, wire
from phalanx.agent.agent import Agent
from phalanx.agent.frames import InvalidFrame, RequestProblem, pack, unpack
from phalanx.agent.guard import guarded
from phalanx.agent.machine import inspect_python, reach
from phalanx.agent.storage import blobs, environments, folders, run_results

if TYPE_CHECKING:
    from phalanx.agent.agent import Handler

QUICK: tuple[Handler, ...] = (
    *(life.hello, life.ping, life.leave, life.make_way),
    *(run_requests.start, run_requests.resume_tails, run_requests.switch),
    *(blobs.blob, blobs.stored, run_results.collected, reach.free_ports),
)
SLOW: tuple[Handler, ...] = (
    *(life.facts, inspect_python.inspect),  # nvidia-smi takes seconds the first time
    *(reach.listen, reach.reach),
    *(run_requests.stop, run_requests.sample, run_requests.kept_samples),
    *(folders.have, folders.lay_out, environments.environment),
    *(run_results.collect, run_results.checkpoint, run_results.new_files, run_results.clean),
)
HANDLERS = {handler.__name__: handler for handler in (*QUICK, *SLOW)}
FIRST_SECONDS = 30.0


def main() -> int:
    """Read the first frame, which says whether to serve, to detach, or to relay."""
    ownership.be_private()
    # The run's key passes through here: no crash leaves an image of it, nor of the workers.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        first = unpack(lambda count: wire.read_exactly(0, count, FIRST_SECONDS))
        header = first[0]
        if header.get("ask") != "hello":
            raise InvalidFrame("the first frame is not a hello")
        if header.get("attach"):
            return background.relay(header)
        if header.get("detach"):
            return background.go(lambda: new_agent(header), header)
        background.make_way(header)
        return guarded(lambda: life.live(new_agent(header), first, background.stay))
    except RequestProblem as problem:
        refusal = {"problem": header.get("id"), "cause": problem.cause, "remedy": problem.remedy}
        wire.write_all(1, pack(refusal))
        return 1
    except wire.Gone:
        return 0
    except InvalidFrame as wrong:
        print(wrong, file=sys.stderr, flush=True)
        return life.WRONG_FRAME_CODE


def new_agent(hello: dict[str, Any]) -> Agent:
    agent = Agent(HANDLERS, [handler.__name__ for handler in SLOW])
    patience = hello.get("patience")
    if isinstance(patience, (int, float)) and patience > 0:
        agent.patience = float(patience)
    return agent
