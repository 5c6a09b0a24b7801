"""Blueprints in the form of a resource optimiser of 2020, which is nearly JSON, as our own.

Printed ones lack commas, and say yes and no without quotes. Only that is mended; whatever else is
wrong with a file is said as of any blueprint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from phalanx.core.errors import InputError
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import FILE_FIELDS, Machine, as_line

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\s+')
_WORDS = {"yes": "true", "no": "false"}
_SHOWN = [name for name in FILE_FIELDS if name not in ("name", "password")]


@dataclass(frozen=True)
class Converted:
    text: str
    """The same pool, in YAML."""
    mended: list[str]
    """What had to be mended to read it, in words."""


def convert(path: Path) -> Converted:
    if not path.is_file():
        raise InputError(f"there is no blueprint '{path}'", "Check the path.")
    try:
        text, commas, words = repaired(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read '{path}': {error}", "Give a text file.") from None
    with TemporaryDirectory() as folder:
        mended = Path(folder) / path.with_suffix(".json").name
        mended.touch(mode=0o600)  # it may hold passwords; they end with this folder
        mended.write_text(text, encoding="utf-8")
        try:
            pool = read_blueprint(mended)
        except InputError as error:
            raise InputError(error.cause.replace(str(mended), str(path)), error.remedy) from None
    lines = ["machines:", *map(_line, pool.machines)]
    notes = [f"{commas} commas were missing"] if commas else []
    notes += [f"{words} words were without quotes (yes, no)"] if words else []
    secret = any(machine.password is not None for machine in pool.machines)
    notes += ["passwords are not copied: phalanx asks for them"] if secret else []
    return Converted("\n".join(lines) + "\n", notes)


def repaired(text: str) -> tuple[str, int, int]:
    """Valid JSON, if commas and yes or no are all that it lacks; how many there were of each."""
    found: list[str] = []
    commas = words = 0
    before = ""
    for token in _TOKENS.findall(text):
        if token.isspace():
            found.append(token)
            continue
        begins = token not in "}]:,"
        if before and before not in "{[:," and begins:
            found.append(",")
            commas += 1
        if token.lower() in _WORDS:
            token = _WORDS[token.lower()]
            words += 1
        found.append(token)
        before = token
    return "".join(found), commas, words


def _line(machine: Machine) -> str:
    chosen = machine.model_fields_set & set(_SHOWN) | {"host"}
    fields = {name: getattr(machine, name) for name in _SHOWN if name in chosen}
    for name in {"memory", "ship_limit"} & fields.keys():
        fields[name] = f"{fields[name] // 1000}kB"
    if machine.password is not None:
        fields["password"] = "prompt"
    return as_line(machine.name, fields)
