"""What an environment for a project has to hold: its own requirements, and those of a worker."""

from __future__ import annotations

import hashlib
import re
import shlex
from importlib import metadata
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError

DISTRIBUTION = "phalanx-train"
LOCKS = ("requirements.lock", "requirements.txt")
CONSTRAINTS = "constraints.txt"
WORKER_PACKAGES = (
    "torch",
    "numpy",
    "msgspec",
    "pydantic",
    "psutil",
    "safetensors",
    "ruamel-yaml",
    "cryptography",
)
"""What a worker imports of what Phalanx requires; the rest is the command line's."""
TLS_ONLY = frozenset({"cryptography"})
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_DEEPEST = 10


class Step(msgspec.Struct, frozen=True):
    """One call of pip: the contents of a requirements file and of a constraints file."""

    requirements: str
    constraints: str


class Recipe(msgspec.Struct, frozen=True):
    """How to make an environment; ``source`` is the file that asks for it."""

    source: str
    steps: tuple[Step, ...]

    def digest(self, *circumstances: str) -> str:
        """What environments that are alike share: the contents and where they are made."""
        content = msgspec.json.encode([self.steps, circumstances])
        return hashlib.sha256(content).hexdigest()


def read_recipe(root: Path) -> Recipe | None:
    """From the project's lock, requirements or constraints; ``None`` when it has none."""
    for name in LOCKS:
        if (root / name).is_file():
            lines = _lines(root / name, root)
            return Recipe(name, _steps(lines))
    if not (root / CONSTRAINTS).is_file():
        return None
    lines = _lines(root / CONSTRAINTS, root)
    constraints = [*lines, *_own_versions(_names(lines))]
    return Recipe(CONSTRAINTS, (Step(_text(own_requirements()), _text(constraints)),))


def _steps(lines: list[str]) -> tuple[Step, ...]:
    """The project's wishes first: Phalanx is held to the versions here only where they allow it."""
    own, named = own_requirements(), _names(lines)
    versions = _text(_own_versions(named))
    if any("--hash" in line for line in lines):
        # With hashes pip takes nothing without one, so ours come after, and change nothing.
        pins = [_NAME_AND_PIN.sub(r"\1", line) for line in lines if _NAME_AND_PIN.match(line)]
        return Step(_text(lines), ""), Step(_text(own), _text([*pins, versions]))
    return (Step(_text([*lines, *own]), versions),)


_NAME_AND_PIN = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*\s*==\s*[^\s;\\]+).*")


def own_requirements() -> list[str]:
    """Phalanx's own, as far as a worker needs them."""
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        required = []
    wanted = [line for line in required if "extra ==" not in line]
    found = [line for line in wanted if _names([line]) & set(WORKER_PACKAGES)]
    return found or list(WORKER_PACKAGES)


def installed(names: tuple[str, ...] = WORKER_PACKAGES) -> dict[str, str]:
    """The versions that this machine has."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _own_versions(without: set[str]) -> list[str]:
    """This machine's versions, so that the others get the same; builds (+cpu) may differ."""
    versions = {name: v.partition("+")[0] for name, v in installed().items()}
    return [f"{name}=={version}" for name, version in versions.items() if name not in without]


def _names(lines: list[str]) -> set[str]:
    found = (_NAME.match(line) for line in lines)
    return {re.sub(r"[-_.]+", "-", match[1]).lower() for match in found if match}


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines if line.strip())


def _lines(file: Path, root: Path, depth: int = 0) -> list[str]:
    """The lines of a file with those that it includes; comments are left out."""
    shown = file.relative_to(root) if file.is_relative_to(root) else file
    if depth > _DEEPEST:
        raise InputError(f"{shown} includes itself", "Remove one of its -r lines.")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {shown}: {error}", "Correct it, or remove it.") from None
    found = []
    for number, line in enumerate(_logical(text), start=1):
        included = _included(line)
        if included is not None:
            found += _lines(file.parent / included, root, depth + 1)
        elif _is_local(line):
            raise InputError(
                f"{shown}: '{line}' installs a folder (requirement {number})",
                "The project is sent as it is, so that line is not needed there: remove it, or "
                "name a 'python' for the machines in the blueprint.",
            )
        else:
            found.append(line)
    return found


def _logical(text: str) -> list[str]:
    """Lines joined at backslashes, without comments and empty ones."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _included(line: str) -> str | None:
    """The file that a ``-r`` or ``-c`` line names."""
    found = re.fullmatch(r"(?:-r|-c|--requirement|--constraint)[\s=]*(.+)", line)
    return shlex.split(found[1])[0] if found else None


def _is_local(line: str) -> bool:
    return bool(re.match(r"(?:-e|--editable)\b|\.{0,2}/|\.$|file:", line))
