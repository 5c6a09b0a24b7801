"""Where a machine is not what its blueprint says: pure, so that check, probe and run agree."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.pool.machine import Machine

MEMORY_SLACK = 0.9
"""A kernel keeps some of the memory that was bought for itself."""


@dataclass(frozen=True)
class Contradiction:
    """One field; ``cause`` and ``remedy`` are for people."""

    machine: str
    field: str
    said: int
    found: int
    remedy: str

    @property
    def cause(self) -> str:
        words = {"gpus": "GPU", "cores": "core"}
        if self.field == "memory":
            said, found = (f"{size / 2**30:.1f} GiB" for size in (self.said, self.found))
            return f"{self.machine}: the blueprint says {said} of memory, the machine has {found}"
        word = words[self.field]
        said, found = (count_words(number, word) for number in (self.said, self.found))
        return f"{self.machine}: the blueprint says {said}, the machine has {found}"

    def __str__(self) -> str:
        return f"{self.cause}. {self.remedy}"


def count_words(number: int, word: str) -> str:
    many = word if number == 1 else f"{word}s"
    return f"no {many}" if number == 0 else f"{number} {many}"


def contradictions(
    machine: Machine, *, cores: int | None, memory: int | None, gpus: int | None
) -> list[Contradiction]:
    """What the blueprint promises and the machine does not have.

    Less than there is may be wanted; an emulated machine pretends on purpose.
    """
    if machine.emulated:
        return []
    found = []
    for field, said, there, least in (
        ("gpus", machine.gpus if "gpus" in machine.model_fields_set else 0, gpus, 1.0),
        ("cores", machine.cores, cores, 1.0),
        ("memory", machine.memory, memory, MEMORY_SLACK),
    ):
        if said is not None and there is not None and there < said * least:
            remedy = f"Correct '{field}'"
            remedy += ", or set emulated: yes if that is intended." if field == "gpus" else "."
            found.append(Contradiction(machine.name, field, said, there, remedy))
    return found
