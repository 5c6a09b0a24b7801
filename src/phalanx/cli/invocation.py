"""The command line as it was typed, split at the first ``--``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.settings import PROFILE_STEPS

PASS_WORDS_ON = ("run", "compare", "plan", "simulate", "worker")
"""The verbs that give the words after ``--`` to a script."""

PROFILE = "--profile"
"""The option that ``run`` and ``compare`` take with or without a number, ``report`` without one."""


@dataclass(frozen=True)
class Invocation:
    """``ours`` has the words before ``--``; ``words`` those after it, for the user's script."""

    ours: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @staticmethod
    def read(argv: Sequence[str]) -> Invocation:
        if "--" not in argv:
            return Invocation(tuple(argv))
        at = list(argv).index("--")
        return Invocation(tuple(argv[:at]), tuple(argv[at + 1 :]))

    @property
    def command(self) -> list[str]:
        """The whole command line, as quoted in reports."""
        tail = ["--", *self.words] if self.words else []
        return ["phalanx", *self.ours, *tail]

    @property
    def parsed(self) -> list[str]:
        """The words for the parser, which wants a value: ``--profile`` alone has the default."""
        following = (*self.ours[1:], "")
        alone = self.ours[:1] != ("report",)
        return [
            f"{word}={PROFILE_STEPS}" if word == PROFILE and alone and not after.isdigit() else word
            for word, after in zip(self.ours, following, strict=True)
        ]

    @property
    def json(self) -> bool:
        return "--json" in self.ours
