"""The output of verbs: text for people, and a JSON object for programs as stdout's last line."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from phalanx.core.terminal import printable, wrapped

if TYPE_CHECKING:
    from phalanx.cli.console import CleanConsole
    from phalanx.core.errors import PhalanxError


class Output:
    """With ``--json`` text goes to stderr, and stdout ends with one JSON object."""

    def __init__(self, json: bool) -> None:
        from phalanx.cli.console import CleanConsole

        self.json = json
        console = partial(CleanConsole, highlight=False, markup=False, soft_wrap=True)
        self.human: CleanConsole = console(stderr=json)
        self.errors: CleanConsole = console(stderr=True)

    def say(self, text: str = "", style: str | None = None) -> None:
        self.human.print(printable(text), style=style)

    def note(self, text: str) -> None:
        """Print to stderr what the user should know besides the result."""
        self.errors.print(wrapped(text, self.errors.file), style="dim")

    def problem(self, error: PhalanxError) -> None:
        write_problem(error.cause, error.remedy)

    def result(self, value: dict[str, Any]) -> None:
        """Print the verb's JSON object, if asked for; nothing may follow it on stdout."""
        if self.json:
            print_json(value)


def print_json(value: dict[str, Any]) -> None:
    # NaN is not JSON: a diverged loss becomes null, like any unknown value.
    print(json.dumps(without_nan(value), allow_nan=False), flush=True)


def without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def write_problem(cause: str, remedy: str) -> None:
    """Print ``error: cause``, and ``hint: remedy`` below it, to stderr."""
    sys.stdout.flush()
    lines = [f"error: {cause}", *([f"hint: {remedy}"] if remedy else [])]
    print(wrapped("\n".join(lines), sys.stderr), file=sys.stderr, flush=True)
