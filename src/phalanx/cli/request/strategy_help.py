"""``--strategy help``: every strategy, codec and form of a switch, on one screen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from phalanx.cli.output import Output
from phalanx.core.spec.codecs import known_codecs
from phalanx.core.spec.keys import Key
from phalanx.core.spec.strategies import ALIASES, known_strategies

WIDTH = 80
LONGEST_EXAMPLE = 19
NO_LIMIT = 1 << 20
SWITCHES = (
    ("switch:at=0.5", "allreduce for half of the training, then async"),
    ("switch:at=auto", "the earliest point that past runs found to keep the accuracy, else 0.5"),
    ("allreduce@0.5/async", "switch:at=0.5, spelled out; any strategies, any number of phases"),
    ("async@40e/allreduce", "a phase that ends after 40 epochs"),
    ("switch:on=straggler", "allreduce; async while a worker is transiently slow"),
)


def explain(*, json: bool) -> None:
    """Print the tables; with ``json`` also print them as a JSON object."""
    strategies = [
        _entry(name, traits.summary, traits.keys) for name, traits in known_strategies().items()
    ]
    codecs = [_entry(name, traits.summary, traits.keys) for name, traits in known_codecs().items()]
    for codec in codecs:
        codec["example"] = f"allreduce+{codec['example']}"
    switches = [{"example": example, "summary": summary} for example, summary in SWITCHES]
    out = Output(json)
    out.human.width = min(out.human.width, WIDTH)
    for title, entries in (("strategy", strategies), ("codec", codecs)):
        rows = [(entry["name"], _about(entry), entry["example"]) for entry in entries]
        _show((title, "what it does, and its options", "example"), rows, out)
    _show(("switch", "what it does"), SWITCHES, out)
    for name in dict.fromkeys(ALIASES.values()):
        others = ", ".join(alias for alias, real in ALIASES.items() if real == name)
        out.say(f"{name} may also be called {others}")
    out.say("Try one: phalanx run train.py --workers 2 --strategy ssp:bound=3")
    out.result(
        {"strategies": strategies, "codecs": codecs, "switches": switches, "aliases": ALIASES}
    )


def _entry(name: str, summary: str, keys: Mapping[str, Key]) -> dict[str, Any]:
    options = {key: _option(found) for key, found in keys.items()}
    # The example is the name with as many numeric options as fit.
    example = name
    for key, option in options.items():
        default = option["default"] or ""
        longer = f"{example}:{key}={default}"
        if default[:1].isdecimal() and len(longer) <= LONGEST_EXAMPLE:
            example = longer
    return {"name": name, "summary": summary, "options": options, "example": example}


def _option(key: Key) -> dict[str, Any]:
    """Split off the default, in brackets at the end of a key's summary; add the key's range."""
    found = re.fullmatch(r"(.*?) \(([^()]*)\)", key.summary)
    summary, default = (found[1], found[2]) if found else (key.summary, None)
    return {"summary": summary, "default": default, "range": _range(key)}


def _range(key: Key) -> str:
    if key.choices:
        return " or ".join(key.choices)
    if key.high is None or key.high >= NO_LIMIT:
        return "" if key.low is None else f"{key.low:g} or more"
    return f"at most {key.high:g}" if key.low is None else f"{key.low:g} to {key.high:g}"


def _show(titles: Sequence[str], rows: Sequence[Sequence[str | Text]], out: Output) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, title in enumerate(titles):
        table.add_column(title, no_wrap=number != 1, ratio=1 if number == 1 else None)
    for name, *rest in rows:
        table.add_row(Text(str(name), style="cyan"), *rest)
    out.human.print(table, soft_wrap=False)
    out.say()


def _about(entry: dict[str, Any]) -> Text:
    about = Text(entry["summary"])
    for key, option in entry["options"].items():
        default = f"={option['default']}" if option["default"] else ""
        limits = f"; {option['range']}" if option["range"] else ""
        about.append(f"\n{key}{default}: {option['summary']}{limits}", style="dim")
    return about
