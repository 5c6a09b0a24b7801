"""The command line as it was typed, split at the first ``--``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.settings import PROFILE_STEPS

PASS_WORDS_ON = ("run", "compare", "plan", "simulate", "worker")
"""The verbs that give the words after ``--`` to a script."""
WATCH, WATCHED = "--watch", ("run", "compare")
"""A word of the command line that says how to follow what these verbs do, and not what they do."""


@dataclass(frozen=True)
class Invocation:
    """``ours`` has the words before ``--``; ``words`` those after it, for the user's script."""

    ours: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    watch: bool = False
    """Whether ``--watch`` was given, which is not among ``ours``."""

    @staticmethod
    def read(argv: Sequence[str]) -> Invocation:
        at = list(argv).index("--") if "--" in argv else len(argv)
        ours = list(argv[:at])
        for i, (word, after) in enumerate(zip(ours, [*ours[1:], ""], strict=False)):
            if word == "--profile" and ours[0] != "report" and not after.isdigit():
                ours[i] = f"--profile={PROFILE_STEPS}"  # the parser wants a value
        watch = WATCH in ours and ours[0] in WATCHED
        kept = [word for word in ours if not (watch and word == WATCH)]
        return Invocation(tuple(kept), tuple(argv[at + 1 :]), watch)

    @property
    def command(self) -> list[str]:
        """The whole command line, as quoted in reports."""
        tail = ["--", *self.words] if self.words else []
        return ["phalanx", *self.ours, *tail]

    @property
    def json(self) -> bool:
        return "--json" in self.ours
