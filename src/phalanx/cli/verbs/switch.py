"""``phalanx switch``: change the strategy of a run in progress."""

from __future__ import annotations

import json as json_module
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.core.spec import Spec
    from phalanx.observe.events.collect import EventTail
    from phalanx.observe.events.event_types import Switched

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.1
MOST_BYTES = 1 << 16
EXAMPLE = "For example: phalanx switch async"


def switch(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] SPEC", help="The run (default: the running one), then the strategy."
        ),
    ],
    json: o.Json = False,
) -> int:
    """Change the strategy of a run while it trains.

    The workers switch at their next common step; parameters and optimizer stay as they are.
    """
    from phalanx.observe.events.collect import EventTail
    from phalanx.observe.summary.run_records import LaunchRecord, PlanRecord, read_record

    run, spec = _read(words)
    paths = _find(run)
    plan = read_record(paths.plan, PlanRecord)
    if plan is not None and plan.workers == 1:
        raise InputError(
            f"'{paths.id}' has one worker, so there is nothing to synchronise",
            "Start it with --workers 2 or more.",
        )
    out = Output(json)
    launch = read_record(paths.launch, LaunchRecord) or LaunchRecord()
    events = EventTail(paths, [worker.rank for worker in launch.workers])
    while events.poll():
        pass  # only later events count
    number = _ask(paths, spec)
    switched = _wait(paths, events, spec)
    out.say(_told(paths, spec, switched))
    out.result(_result(paths, spec, number, switched))
    return 0


def _read(words: list[str]) -> tuple[str | None, Spec]:
    from phalanx.core.spec import parse_spec

    if len(words) > 2:
        raise InputError("switch takes at most a run and a strategy", EXAMPLE)
    spec = parse_spec(words[-1])
    if spec.phases[0].name == "single":
        raise InputError("'single' has one worker only", EXAMPLE)
    if spec.equal_shares:
        raise InputError("shares=equal is chosen when a run starts", EXAMPLE)
    return (words[0] if len(words) == 2 else None), spec


def _find(name: str | None) -> RunPaths:
    from phalanx.cli.request.find_run import running
    from phalanx.observe.summary.run_status import controller_alive

    paths = running(name)
    if paths is None:
        raise InputError("nothing is running", "Start one: phalanx run SCRIPT --workers 2")
    if controller_alive(paths):
        return paths
    if paths.detached.exists():
        remedy = f"First, in another terminal: phalanx attach {paths.id}"
        raise InputError(
            f"'{paths.id}' is detached: it has no controller that could pass on the switch", remedy
        )
    remedy = f"Continue it: phalanx resume {paths.id} --strategy SPEC"
    raise InputError(f"'{paths.id}' is not running", remedy)


def _ask(paths: RunPaths, spec: Spec) -> int:
    from phalanx.core.files import write_asked

    number = _last_number(paths) + 1
    text = json_module.dumps({"number": number, "spec": spec.text}) + "\n"
    write_asked(paths.switch, text, "Get write access to the run's folder.")
    return number


def _last_number(paths: RunPaths) -> int:
    from phalanx.core.files import read_bounded

    try:
        record = json_module.loads(read_bounded(paths.switch, MOST_BYTES))
        return max(0, int(record["number"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def _wait(paths: RunPaths, events: EventTail, spec: Spec) -> Switched | None:
    """Wait for the workers' event of the switch; ``None`` if it does not come in time."""
    from phalanx.observe.events.event_types import Switched
    from phalanx.observe.summary.run_status import controller_alive

    labels = {phase.label for phase in spec.phases}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        alive = controller_alive(paths)  # checked first: events written before are read below
        for event in events.poll():
            if isinstance(event, Switched) and event.after in labels:
                return event
        if not alive or time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)


def _told(paths: RunPaths, spec: Spec, switched: Switched | None) -> str:
    from phalanx.core.words import seconds
    from phalanx.observe.summary.run_status import controller_alive

    if switched is not None:
        return (
            f"switched from {switched.before} to {switched.after} at epoch "
            f"{switched.at_epoch:.2f}, pause {seconds(switched.pause)}"
        )
    if not controller_alive(paths):
        return f"{paths.id} ended before it switched"
    return (
        f"requested that {paths.id} switch to {spec.text}; its workers have not switched yet "
        f"(if they refuse, the log says why: phalanx logs {paths.id})"
    )


def _result(paths: RunPaths, spec: Spec, number: int, switched: Switched | None) -> dict[str, Any]:
    names = {"before": "before", "after": "after", "at_epoch": "at_epoch", "pause_seconds": "pause"}
    done = {shown: getattr(switched, name, None) for shown, name in names.items()}
    asked = {"run": paths.id, "spec": spec.text, "number": number}
    return {**asked, "switched": switched is not None, **done}
