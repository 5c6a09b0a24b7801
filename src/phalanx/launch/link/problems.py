"""Combines the errors of several machines into one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from phalanx.core.errors import PhalanxError


def as_one(problems: Mapping[str, PhalanxError]) -> PhalanxError:
    """Combine the errors of several machines: all causes in one line, then the remedies.

    Machines with the same remedy share a line. The type is that of the highest exit code.
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
    """Await the work of all machines to its end; raise all their errors as one."""
    results = await asyncio.gather(*works.values(), return_exceptions=True)
    _raise(dict(zip(works, results, strict=True)))


async def first_failure(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Await the work of all machines at once; when one fails, cancel the rest and raise."""
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
