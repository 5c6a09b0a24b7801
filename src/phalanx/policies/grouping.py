"""Decides which workers step together: pure functions that return groups of ranks.

Every rank is in exactly one team. Ranks ascend in a team, and teams by their first rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from phalanx.core.spec import Phase

Team = tuple[int, ...]

UNLIKE = 1.25
"""Workers next to each other in speed do not step together if their ratio is greater."""


DEFAULT_SIZE = 2


def teams_of(
    phase: Phase, workers: int, machines: Callable[[], Sequence[str]], speeds: Sequence[float]
) -> list[Team]:
    """The teams of a phase whose workers form groups; ``speeds`` are in samples per second."""
    by, size = phase.options.get("by", "rank"), phase.options.get("size")
    if by == "machine":
        return by_machine(machines())
    if by == "speed":
        return by_speed(speeds, int(size) if size is not None else None)
    return by_size(workers, int(size or DEFAULT_SIZE))


def by_size(workers: int, size: int) -> list[Team]:
    """Teams of consecutive ranks; the last one may be smaller."""
    return _pieces(range(workers), size)


def by_machine(names: Sequence[str]) -> list[Team]:
    """The workers of each machine."""
    teams: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        teams.setdefault(name, []).append(rank)
    return _tidy(teams.values())


def by_speed(speeds: Sequence[float], size: int | None = None) -> list[Team]:
    """Teams of at most ``size`` workers of similar speed; one of unknown speed (0) is alone."""
    known = sorted((r for r, s in enumerate(speeds) if s > 0.0), key=lambda r: (-speeds[r], r))
    runs: list[list[int]] = [[r] for r, s in enumerate(speeds) if s <= 0.0]
    before: int | None = None
    for rank in known:
        if before is None or speeds[before] > UNLIKE * speeds[rank]:
            runs.append([])
        runs[-1].append(rank)
        before = rank
    return _tidy(piece for run in runs for piece in _pieces(run, size or len(run)))


def _pieces(ranks: Sequence[int], size: int) -> list[Team]:
    return [tuple(ranks[start : start + size]) for start in range(0, len(ranks), size)]


def _tidy(teams: Iterable[Iterable[int]]) -> list[Team]:
    return sorted(tuple(sorted(team)) for team in teams)
