"""Writes docs/reference/cli.md from the program: ``python tests/unit/cli/cli_reference.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from phalanx.cli.main import app

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md"
INTRODUCTION = """\
# Command line

`phalanx VERB [OPTIONS]`. Every verb has `--help`, with an example, and `--json`. This page is
generated from the program (`python tests/unit/cli/cli_reference.py`), and a test checks that they
agree.

**Arguments after `--`** are passed to the script unchanged:
`phalanx run train.py --workers 2 -- --depth 20`. Options of the command line (`--epochs`,
`--batch`, …) override the values of a script that calls Phalanx; an unchanged one
decides by itself.

**`--json`** prints one JSON object as the last line of stdout; all other text goes to stderr.
`run` gives [the summary of the run](summary.md); `compare` and `demo` give
`{"study": …, "runs": [summaries], "report": …, "failures": {run: reason}}`; `plan` gives
`{"chosen": prediction, "ranked": [predictions], "unknown": [predictions], "reasons": […]}`;
an error gives
`{"error": …, "remedy": …, "exit_code": …}`.

**`--strategy help`** explains every strategy, codec and form of a switch, with options and an
example each.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the training script failed (its own code is in the summary) |
| 2 | the input is wrong: a flag, a file, a strategy |
| 3 | a machine or a connection failed |
| 130 | stopped by the user |

| variable | meaning |
|---|---|
| `PHALANX_RUNS` | the folder for runs; default: `./runs` |
| `PHALANX_DATA` | where data sources look for files without `--data`; default: the cache |
| `PHALANX_RECONNECT` | seconds in which a controller may reconnect over SSH; default: 120 |
| `PHALANX_PLUGINS` | modules that are imported first, separated by commas, to register plugins |
| `PHALANX_DEBUG` | `1` shows the traceback of an error of Phalanx itself |
"""


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb with its command, in the order of ``phalanx --help``."""
    commands: Any = typer.main.get_command(app)
    for name in commands.list_commands(None):
        command = commands.commands[name]
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        for sub, subcommand in (inner or {}).items():
            yield f"{name} {sub}", subcommand


def options_of(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and p.name != "help"]


def page() -> str:
    return "\n".join([INTRODUCTION, *(_section(name, command) for name, command in verbs())])


def example_of(command: Any) -> str:
    """The words after ``Example:`` in a verb's help."""
    text = f"{command.help or ''}\n{command.epilog or ''}"
    return text.partition("Example:")[2].strip().partition("\n")[0].strip()


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([f"phalanx {name}", *(p.metavar for p in arguments), "[OPTIONS]"])
    lines = [f"## {name}", "", f"`{usage}`", "", *_about(command)]
    lines += ["```", example_of(command), "```", "", "| option | meaning |", "|---|---|"]
    for argument in arguments:
        lines.append(f"| `{argument.metavar}` | {argument.help} |")
    lines += [_row(option) for option in options_of(command)]
    return "\n".join(lines) + "\n"


def _about(command: Any) -> list[str]:
    text: str = command.help.partition("Example:")[0].strip()
    return [*(" ".join(part.split()) + "\n" for part in text.split("\n\n"))]


def _row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    metavar = f" `{option.metavar}`" if option.metavar else ""
    plain = option.default is None or option.default is False
    default = "" if plain or option.secondary_opts else f" Default: `{option.default}`."
    return f"| {names}{metavar} | {option.help}{default} |".replace(" | |", " |")


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
