"""The strategies that a search for the point of a switch tries."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec


@dataclass(frozen=True)
class Specs:
    """From what to what, and in how many parts of the training."""

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
        """The spec that switches at ``point`` parts of the grid."""
        if point in (0, self.grid):
            return self.before if point else self.after
        if (self.before, self.after) == ("allreduce", "async"):
            return f"switch:at={self.share(point):g}"
        return f"{self.before}@{self.share(point):g}/{self.after}"

    def share(self, point: int) -> float:
        return point / self.grid


def _one_phase(option: str, text: str) -> str:
    spec = parse_spec(text)
    if len(spec.phases) > 1 or spec.on_straggler:
        raise InputError(f"{option} {text} is itself a switch", "Give one strategy.")
    if spec.phases[0].name == "single":
        raise InputError(f"{option} cannot be single: it has one worker", "For example: allreduce")
    return spec.phases[0].label
