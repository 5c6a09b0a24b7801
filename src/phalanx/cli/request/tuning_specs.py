"""The strategies that a search for the point of a switch tries."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.core.spec.strategies import known_strategies


@dataclass(frozen=True)
class Specs:
    """From what to what, and in how many parts of the training.

    A point counts the synchronous parts; they come last if only ``after`` is (a reverse switch).
    """

    before: str
    after: str
    grid: int

    @staticmethod
    def read(before: str, after: str, grid: int) -> Specs:
        specs = Specs(_one_phase("--from", before), _one_phase("--to", after), grid)
        if specs.before == specs.after:
            raise InputError("--from and --to are the same", "For example: --to async")
        return specs

    def of(self, point: int) -> str:
        """The spec with ``point`` synchronous parts of the grid."""
        if (share := self.share(point)) in (0.0, 1.0):
            return self.before if share else self.after
        if (self.before, self.after) == ("allreduce", "async"):
            return f"switch:at={share:g}"
        return f"{self.before}@{share:g}/{self.after}"

    def share(self, point: int) -> float:
        """Where it switches."""
        return (self.grid - point if self.reverse else point) / self.grid

    @property
    def reverse(self) -> bool:
        names = (parse_spec(text).phases[0].name for text in (self.before, self.after))
        before, after = (known_strategies()[name].lockstep for name in names)
        return after and not before


def _one_phase(option: str, text: str) -> str:
    spec = parse_spec(text)
    if len(spec.phases) > 1 or spec.on_straggler:
        raise InputError(f"{option} {text} is itself a switch", "Give one strategy.")
    if spec.phases[0].name == "single":
        raise InputError(f"{option} cannot be single: it has one worker", "For example: allreduce")
    return spec.phases[0].label
