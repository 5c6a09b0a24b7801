"""Writes a blueprint for named machines, with the hardware and the Python found on each."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import date
from pathlib import Path

import asyncssh
from pydantic import ValidationError

from phalanx.core.errors import InputError, MachineError, PhalanxError
from phalanx.launch.link.agent_link import AgentLink, open_agent
from phalanx.launch.pool.pool_check import ANSWER_SECONDS, START_SECONDS, Visit, see
from phalanx.launch.ssh.ssh_config import Resolved, resolve
from phalanx.launch.ssh.ssh_login import typed
from phalanx.pool.jumps import JumpError, keys_beside, resolve_ways
from phalanx.pool.machine import HERE, SELECTION_WORDS, Credential, Machine, read_credential

PYTHONS = (
    "python3",
    "~/.venv/bin/python",
    "~/venv/bin/python",
    "~/miniforge3/bin/python",
    "~/miniconda3/bin/python",
    "~/anaconda3/bin/python",
    "/opt/conda/bin/python",
)
"""Pythons in which torch is looked for, in this order."""
_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~@-]*")
_ADDRESS = re.compile(r"\[?[0-9a-fA-F:.]+\]?")


def password_reference(text: str) -> Credential:
    """Read the value of ``--password``; error messages do not repeat it: it may be a secret."""
    try:
        found = read_credential(text)
    except ValueError as error:
        raise InputError(f"--password: {error}", "Give prompt, or env:NAME.") from None
    assert isinstance(found, Credential)
    if found.kind in ("key", "agent"):
        raise InputError(
            "--password takes prompt or env:NAME, not a key or the agent",
            "Give a key with --key; the SSH agent needs no option.",
        )
    if found.kind == "inline":
        raise InputError(
            "--password takes prompt or env:NAME, never the password itself",
            "Other users can see the arguments of a command: if that was a password, change it.",
        )
    if found.kind == "env" and not os.environ.get(found.name):
        raise InputError(
            f"{found.name}, which should hold the password, is not set",
            f"Set it: read -rs {found.name} && export {found.name}",
        )
    return found


def typed_password(machines: Iterable[Machine]) -> Credential | None:
    """Ask once for the password of all machines that need a typed one; ``None`` if none does."""
    names = [m.label for m in machines if m.password is not None and m.password.kind == "prompt"]
    if not names:
        return None
    return typed(names[0] if len(names) == 1 else f"these {len(names)} machines")


def machines_named(
    names: Iterable[str],
    out: Path,
    *,
    user: str | None = None,
    key: str | None = None,
    password: Credential | None = None,
) -> list[Machine]:
    """Return the machines of these ``names``, with their jump hosts and file of host keys."""
    found: list[Machine] = []
    for name in names:
        machine = _machine(name, user, key, password)
        if any(machine.name == other.name for other in found):
            raise InputError(f"'{name}' is given twice", "Give each machine once.")
        found.append(machine)
    try:
        return resolve_ways(found, out)
    except JumpError as error:
        raise InputError(error.problem, error.remedy) from None


def _machine(name: str, user: str | None, key: str | None, password: Credential | None) -> Machine:
    own = Resolved(HERE) if name == HERE else resolve(name)
    fields = {
        "name": name_for(name),
        "host": f"[{own.host}]" if ":" in own.host else own.host,
        "port": own.port,
        "user": None if name == HERE else user or own.user,
        "key": None if name == HERE else key or own.key,
        "password": None if name == HERE else password,
        "jump": own.jump,
    }
    try:
        return Machine.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError:
        raise InputError(
            f"'{name[:60]}' is not a machine name", "Give a host name, an address, or an alias."
        ) from None


def name_for(text: str) -> str:
    """Return a name that is valid in a blueprint, as close as possible to ``text``."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text.rpartition("@")[2]).strip("-._")[:60]
    return f"{plain}-1" if plain in SELECTION_WORDS else plain or "machine"


async def find_out(machines: Sequence[Machine], typed: Credential | None = None) -> list[Visit]:
    """Return facts of every machine, and the first Python there that has torch.

    ``typed`` is the password of the machines whose ``password`` is ``prompt``; the visits keep that
    word, not the password.
    """
    visits = [Visit(machine) for machine in machines]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(_find_out_one(stack, each, typed) for each in visits))
    return visits


async def _find_out_one(stack: AsyncExitStack, visit: Visit, typed: Credential | None) -> None:
    asked = visit.machine.password is not None and visit.machine.password.kind == "prompt"
    entered = visit.machine.model_copy(update={"password": typed} if asked else {})
    try:
        link = await open_agent(entered, run=None, timeout=START_SECONDS)
        await stack.enter_async_context(link)
        await see(link, visit)
        if visit.torch is None and not visit.machine.is_here:
            await _look_for_torch(link, visit)
    except PhalanxError as error:
        visit.error = _in_words_of_init(error, visit.machine)


def _in_words_of_init(error: PhalanxError, machine: Machine) -> PhalanxError:
    """Return ``error``; for a refused login, advise options, as there is no blueprint yet."""
    if not isinstance(error.__context__, asyncssh.PermissionDenied):
        return error
    if machine.password is None:
        remedy = "If it accepts passwords: --password prompt (or env:NAME); else --user, --key."
    else:
        remedy = "Check --user and the password, which is the same for all of them."
    return MachineError(error.cause, remedy)


async def _look_for_torch(link: AgentLink, visit: Visit) -> None:
    for python in PYTHONS[1:]:
        try:
            found = await link.ask(
                "inspect", python=python, packages=["torch"], timeout=ANSWER_SECONDS
            )
        except PhalanxError:
            continue
        torch = (found.get("packages") or {}).get("torch")
        if torch:
            visit.python, visit.torch = str(found.get("version"))[:40], str(torch)[:40]
            visit.machine = visit.machine.model_copy(update={"python": python})
            return


def with_host_names(visits: Iterable[Visit]) -> None:
    """Name machines that were given by address after their own host names, if these are free."""
    visits = list(visits)
    taken = {visit.machine.name for visit in visits}
    for visit in visits:
        if visit.facts is None or not _ADDRESS.fullmatch(visit.machine.host):
            continue
        name = name_for(visit.facts.hostname.partition(".")[0])
        if name not in taken and visit.machine.name == name_for(visit.machine.host):
            taken.add(name)
            visit.machine = visit.machine.model_copy(update={"name": name})


def blueprint_text(visits: Iterable[Visit], out: Path, today: date) -> str:
    """Return the blueprint in YAML; machines not reached stay as comments, with the reason."""
    lines = [
        f"# Written by phalanx pool init on {today.isoformat()}; edit it as needed.",
        f"# Check it:        phalanx pool check {out.name}",
        f"# Host keys are beside it, in {keys_beside(out).name}",
        "machines:",
    ]
    for visit in visits:
        lines += _entry(visit) if visit.error is None else _left_out(visit)
    return "\n".join(lines) + "\n"


def _entry(visit: Visit) -> list[str]:
    machine, facts = visit.machine, visit.facts
    assert facts is not None
    rows: list[tuple[str, str, str]] = [(n, v, "") for n, v in _way(machine)]
    if visit.torch is not None and not machine.is_here:
        rows.append(("python", machine.python, f"{visit.python}, torch {visit.torch}"))
    elif visit.torch is None:
        rows.append(("#python", "/path/to/python", "no Python with torch was found"))
    rows.append(("cores", str(facts.cores), facts.cpu_model))
    if facts.memory:
        rows.append(("memory", f"{facts.memory * 10 // 2**30 / 10:g}GiB", ""))
    if facts.gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in facts.gpus))
        rows.append(("gpus", str(len(facts.gpus)), names))
    return [f"  {machine.name}:", *(_row(*row) for row in rows)]


def _way(machine: Machine) -> list[tuple[str, str]]:
    found = [("host", machine.host)]
    if machine.port != 22:
        found.append(("port", str(machine.port)))
    for name in ("user", "key", "password", "jump"):
        value = getattr(machine, name)
        if value is not None:
            found.append((name, str(value)))
    return found


def _row(name: str, value: str, remark: str) -> str:
    sign, name = ("# ", name[1:]) if name.startswith("#") else ("", name)
    plain = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    row = f"    {sign}{name}: {plain}"
    return f"{row}   # {_one_line(remark)}" if remark else row


def _left_out(visit: Visit) -> list[str]:
    fields = ", ".join(f"{name}: {json.dumps(value)}" for name, value in _way(visit.machine))
    assert visit.error is not None
    why = _one_line(visit.error.cause, 200)
    return [f"  # {visit.machine.name}: {{{fields}}}", f"  #   not reached: {why}"]


def _one_line(text: str, limit: int = 60) -> str:
    """Return text from a machine as one line, for a comment."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:limit]
