"""What went wrong on several machines at once, as one error that leaves none of them out."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.core.errors import PhalanxError


def as_one(problems: Mapping[str, PhalanxError]) -> PhalanxError:
    """Of problems by machine: all causes in one line, and a line of remedy for each machine.

    Machines with the same remedy share a line. A failed machine weighs more than wrong input.
    """
    worst = max(problems.values(), key=lambda problem: problem.exit_code)
    causes = "; ".join(dict.fromkeys(problem.cause for problem in problems.values()))
    by_remedy: dict[str, list[str]] = {}
    for name, problem in problems.items():
        if problem.remedy:
            by_remedy.setdefault(problem.remedy, []).append(name)
    return type(worst)(causes, _lines(by_remedy, len(problems)))


def _lines(by_remedy: Mapping[str, list[str]], machines: int) -> str:
    """Nobody is named where one remedy is for all."""
    lines = [
        remedy if len(names) == machines else f"{', '.join(names)}: {remedy}"
        for remedy, names in by_remedy.items()
    ]
    return "\n  ".join(lines)
