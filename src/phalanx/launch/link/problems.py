"""Makes one error of all that goes wrong on several machines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from phalanx.core.errors import PhalanxError


def as_one(problems: Mapping[str, PhalanxError]) -> PhalanxError:
    """Make one error of the problems of several machines: all causes in a line, then remedies.

    Machines with the same remedy share a line. A failed machine weighs more than wrong input.
    """
    worst = max(problems.values(), key=lambda problem: problem.exit_code)
    causes = "; ".join(dict.fromkeys(problem.cause for problem in problems.values()))
    by_remedy: dict[str, list[str]] = {}
    for name, problem in problems.items():
        if problem.remedy:
            by_remedy.setdefault(problem.remedy, []).append(name)
    # Machines are named where their remedies differ.
    machines = len(problems)
    lines = [
        remedy if len(names) == machines else f"{', '.join(names)}: {remedy}"
        for remedy, names in by_remedy.items()
    ]
    return type(worst)(causes, "\n  ".join(lines))


async def all_of(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Do the work of all machines to its end; one error names everything that went wrong."""
    results = await asyncio.gather(*works.values(), return_exceptions=True)
    _raise(dict(zip(works, results, strict=True)))


async def first_failure(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Do the work of all machines at once, and stop all of it when one fails."""
    tasks = {name: asyncio.create_task(work) for name, work in works.items()}
    try:
        done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    _raise({name: task.exception() for name, task in tasks.items() if task in done})


def _raise(results: Mapping[str, BaseException | None]) -> None:
    problems: dict[str, PhalanxError] = {}
    for name, result in results.items():
        if isinstance(result, PhalanxError):
            problems[name] = result
        elif isinstance(result, BaseException):
            raise result
    if problems:
        raise as_one(problems)
