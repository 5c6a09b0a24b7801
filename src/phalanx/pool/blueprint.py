"""Read a blueprint: YAML or JSON, in Phalanx's form or the original one (``connections``).

Every mistake is one :class:`InputError` with file, line, column, field and remedy.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from ruamel.yaml.nodes import Node, ScalarNode

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.words import short
from phalanx.pool.document import EXAMPLE, Document, Entry, read_document
from phalanx.pool.here import fitted, measure
from phalanx.pool.jumps import JumpError, resolve_ways
from phalanx.pool.machine import FILE_FIELDS, Machine, Pool

ORIGINAL_NAMES = {"ip": "host", "username": "user"}
"""Fields that have other names in the original form."""


@dataclass(frozen=True)
class Draft:
    """A machine as it is written in the file, before its values are checked."""

    name: str
    label: str
    node: Node
    """Where the machine is in the file."""
    fields: dict[str, Entry]
    inherited: frozenset[str] = frozenset()
    """Names of ``fields`` that come from the defaults."""


def read_blueprint(path: Path) -> Pool:
    """Read the pool that the file describes."""
    document = read_document(Path(path))
    drafts = _drafts(document)
    if not drafts:
        raise document.fault(document.root, "the blueprint has no machines", EXAMPLE)
    machines: list[Machine] = []
    warnings = list(document.warnings)
    for draft in drafts:
        machine = _machine(document, draft)
        _check_password(document, draft, machine)
        _check_twice(document, draft, machine, machines)
        if machine.is_here:
            machine, notes = fitted(machine, measure())
            warnings += notes
        machines.append(machine)
    machines = _with_ways(document, drafts, machines)
    warnings += _password_warning(document, machines)
    return Pool(machines=tuple(machines), source=str(path), warnings=tuple(warnings))


def _drafts(document: Document) -> list[Draft]:
    if document.root is None or _is_empty(document.root):
        return []
    top: dict[str, Entry] = {}
    for entry in document.mapping(document.root, "the blueprint"):
        word = entry.key.lower()
        if word not in ("machines", "defaults", "connections"):
            raise document.fault(
                entry.key_node,
                f"'{short(entry.key)}' is not a field of a blueprint",
                did_you_mean(word, ("machines", "defaults")),
            )
        if word in top:
            raise document.fault(
                entry.key_node, f"'{entry.key}' is in the blueprint twice", "Remove one."
            )
        top[word] = entry
    if "connections" not in top:
        return _own_form(document, top)
    if len(top) > 1:
        other = next(e for word, e in top.items() if word != "connections")
        raise document.fault(
            other.key_node,
            f"'{other.key}' cannot be used with 'connections'",
            "Use either 'connections' alone, or 'machines' with 'defaults'.",
        )
    return _original_form(document, top["connections"])


def _own_form(document: Document, top: dict[str, Entry]) -> list[Draft]:
    defaults: dict[str, Entry] = {}
    if "defaults" in top and not _is_empty(top["defaults"].value):
        defaults = _fields(document, top["defaults"].value, "the defaults")
    if "machines" not in top or _is_empty(top["machines"].value):
        return []
    drafts = []
    for entry in document.mapping(top["machines"].value, "machines"):
        label = f"machine '{short(entry.key)}'"
        empty = _is_empty(entry.value)
        own = {} if empty else _fields(document, entry.value, label)
        inherited = frozenset(defaults.keys() - own.keys())
        drafts.append(Draft(entry.key, label, entry.key_node, {**defaults, **own}, inherited))
    return drafts


def _fields(document: Document, node: Node, label: str) -> dict[str, Entry]:
    found = {}
    for entry in document.mapping(node, label):
        if entry.key not in FILE_FIELDS:
            raise _unknown_field(document, entry, label, FILE_FIELDS)
        found[entry.key] = entry
    return found


def _original_form(document: Document, connections: Entry) -> list[Draft]:
    if _is_empty(connections.value):
        return []
    drafts = []
    nodes = document.sequence(connections.value, f"'{connections.key}'")
    for number, node in enumerate(nodes, start=1):
        label = f"connection {number}"
        fields = _original_fields(document, node, label)
        named = fields.pop("name", None) or fields.get("host")
        name = f"machine-{number}"
        if named:
            name = document.text(named.value, f"{label}: {named.key}").replace(":", "-").strip("-")
        drafts.append(Draft(name, label, node, fields))
    return drafts


def _original_fields(document: Document, node: Node, label: str) -> dict[str, Entry]:
    """Read the fields of a connection, spelt in any case, with spaces, dashes or underscores."""
    found: dict[str, Entry] = {}
    known = (*FILE_FIELDS, "name", *ORIGINAL_NAMES)
    for entry in document.mapping(node, label):
        word = "_".join(entry.key.strip().lower().replace("-", " ").replace("_", " ").split())
        field = ORIGINAL_NAMES.get(word, word)
        if word not in known:
            raise _unknown_field(document, entry, label, known)
        if field in found:
            raise document.fault(
                entry.key_node,
                f"{label} has both '{found[field].key}' and '{short(entry.key)}'",
                "They mean the same: remove one.",
            )
        found[field] = entry
    return found


def _unknown_field(
    document: Document, entry: Entry, label: str, known: Iterable[str]
) -> InputError:
    guess = did_you_mean(entry.key.strip().lower(), known)
    return document.fault(entry.key_node, f"{label} has no field '{short(entry.key)}'", guess)


def _machine(document: Document, draft: Draft) -> Machine:
    values = {
        field: document.text(entry.value, f"{_origin(draft, field)}: {entry.key}")
        for field, entry in draft.fields.items()
    }
    try:
        return Machine.model_validate({"name": draft.name, **values})
    except ValidationError as error:
        # From here on without the original error: its text could hold a password.
        field = str(error.errors(include_input=False, include_context=False)[0]["loc"][0])
    raise _wrong_field(document, draft, field, values)


def _wrong_field(
    document: Document, draft: Draft, field: str, values: dict[str, str]
) -> InputError:
    wanted = Machine.model_fields[field].description or ""
    if field == "name":
        return document.fault(
            draft.node, f"'{short(draft.name)}' is not a machine name", f"A name is {wanted}."
        )
    if field not in draft.fields:
        return document.fault(draft.node, f"{draft.label} has no '{field}'", f"Add it: {wanted}.")
    entry = draft.fields[field]
    value = "this" if field == "password" else f"'{short(values[field])}'"
    problem = f"{_origin(draft, field)}: {entry.key} must be {wanted}, not {value}"
    return document.fault(entry.value, problem, "Correct it.")


def _origin(draft: Draft, field: str) -> str:
    return "defaults" if field in draft.inherited else draft.label


def _check_password(document: Document, draft: Draft, machine: Machine) -> None:
    if machine.inline_password is None or document.private:
        return
    raise document.fault(
        draft.fields["password"].value,
        f"{_origin(draft, 'password')}: the file with this password can be read by others",
        f"Run: chmod 600 {shlex.quote(str(document.path))}   (or give a reference: env:NAME)",
    )


def _check_twice(
    document: Document, draft: Draft, machine: Machine, earlier: list[Machine]
) -> None:
    for other in earlier:
        if other.name == machine.name:
            raise document.fault(
                draft.node, f"machine '{machine.name}' is given twice", "Remove or rename one."
            )
        if machine.is_here and other.is_here:
            raise document.fault(
                draft.node,
                f"'{other.name}' and '{machine.name}' are both this machine (host: here)",
                "Remove one; --workers sets how many workers it gets.",
            )
        if _endpoint(machine) == _endpoint(other):
            raise document.fault(
                draft.node,
                f"'{other.name}' and '{machine.name}' are the same machine ({machine.host}, "
                f"port {machine.port})",
                "Remove one, or correct its host or port.",
            )


def _with_ways(document: Document, drafts: list[Draft], machines: list[Machine]) -> list[Machine]:
    try:
        return resolve_ways(machines, document.path)
    except JumpError as error:
        draft = next(d for d in drafts if d.name == error.machine)
        raise document.fault(draft.fields["jump"].value, error.problem, error.remedy) from None


def _endpoint(machine: Machine) -> tuple[str, int]:
    return machine.host.strip("[]").rstrip(".").lower(), machine.port


def _password_warning(document: Document, machines: list[Machine]) -> list[str]:
    names = [m.name for m in machines if m.inline_password is not None]
    if not names:
        return []
    return [
        f"{document.path} holds the password of {', '.join(names)}; a key (ssh-copy-id) or a "
        f"reference (env:NAME, prompt) is safer"
    ]


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and str(node.tag).endswith(":null")
