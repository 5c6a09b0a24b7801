"""Finds the requirements of a project's environment: the project's own and a worker's."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.files import read_bounded

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
"""Packages that a worker imports; only the command line needs the other requirements."""
TLS_ONLY = frozenset({"cryptography"})
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_DEEPEST = 10
LARGEST = 4 << 20
"""Most bytes of a requirements file; one with hashes of hundreds of packages is smaller."""
MOST_SHOWN = 120  # most characters of a line that are shown


class PipStep(msgspec.Struct, frozen=True):
    """One call of pip: the contents of a requirements file and of a constraints file."""

    requirements: str
    constraints: str


class Recipe(msgspec.Struct, frozen=True):
    """How to make an environment; ``source`` is the file that asks for it."""

    source: str
    steps: tuple[PipStep, ...]

    def digest(self, *circumstances: str) -> str:
        """Return a digest of the steps and ``circumstances``, which determine an environment."""
        content = msgspec.json.encode([self.steps, circumstances])
        return hashlib.sha256(content).hexdigest()


def read_recipe(root: Path) -> Recipe | None:
    """Read the project's lock, requirements or constraints; ``None`` if it has none."""
    for name in (*LOCKS, CONSTRAINTS):
        if (root / name).is_file():
            found = RequirementLines([], [])
            _read_lines(root / name, root, found, as_constraints=name == CONSTRAINTS)
            return Recipe(name, _steps(found))
    return None


@dataclass(frozen=True)
class RequirementLines:
    """The lines of requirements files: packages to install, and constraints on versions."""

    wanted: list[str]
    constraints: list[str]


def _steps(lines: RequirementLines) -> tuple[PipStep, ...]:
    """Return the calls of pip; our versions apply only to packages that ``lines`` do not name."""
    every = [*lines.wanted, *lines.constraints]
    own, without = own_requirements(), _names(every)
    # Use this machine's versions, so that the others get the same; builds (+cpu) may differ.
    here = {name: v.partition("+")[0] for name, v in installed().items() if name not in without}
    versions = [f"{name}=={version}" for name, version in here.items()]
    if not any("--hash" in line for line in every):
        constraints = _text([*lines.constraints, *versions])
        return (PipStep(_text([*lines.wanted, *own]), constraints),)
    # With hashes, pip refuses packages without one, so a second step installs ours, and changes no
    # version of the first; those of ours that have a hash are in the first step.
    needed = _names(own) - _names(lines.wanted)
    hashed = [line for line in lines.constraints if "--hash" in line and _names([line]) & needed]
    first = PipStep(_text([*lines.wanted, *hashed]), _text(lines.constraints))
    pins = [_NAME_AND_PIN.sub(r"\1", line) for line in every if _NAME_AND_PIN.match(line)]
    rest = PipStep(_text(own), _text([*pins, *versions]))
    return (first, rest) if first.requirements else (rest,)


_NAME_AND_PIN = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*\s*==\s*[^\s;\\]+).*")


def own_requirements() -> list[str]:
    """Return Phalanx's own requirements, as far as a worker needs them."""
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        required = []
    wanted = [line for line in required if "extra ==" not in line]
    found = [line for line in wanted if _names([line]) & set(WORKER_PACKAGES)]
    return found or list(WORKER_PACKAGES)


def installed(names: tuple[str, ...] = WORKER_PACKAGES) -> dict[str, str]:
    """Return the versions of these packages on this machine."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _names(lines: list[str]) -> set[str]:
    found = (_NAME.match(line) for line in lines)
    return {re.sub(r"[-_.]+", "-", match[1]).lower() for match in found if match}


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines if line.strip())


def _read_lines(
    file: Path, root: Path, found: RequirementLines, depth: int = 0, *, as_constraints: bool = False
) -> None:
    """Add the lines of a file, and of the files that it includes, to ``found``."""
    shown = file.relative_to(root) if file.is_relative_to(root) else file
    if depth > _DEEPEST:
        raise InputError(f"{shown} includes itself", "Remove one of its -r lines.")
    # Lines joined at backslashes, without comments and empty ones.
    joined = re.sub(r"\\\r?\n", " ", _text_of(file, shown, root))
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    for number, line in enumerate([line for line in lines if line], start=1):
        option, included = _included(line)
        if included is not None:
            inner = as_constraints or option in ("-c", "--constraint")
            _read_lines(file.parent / included, root, found, depth + 1, as_constraints=inner)
        elif re.match(r"(?:-e|--editable)\b|\.{0,2}/|\.$|file:", line):
            raise InputError(
                f"{shown}: '{line}' installs a folder (requirement {number})",
                "Remove that line, which is not needed because the project is sent as it is; or "
                "set 'python' of the machines in the blueprint.",
            )
        else:
            (found.constraints if as_constraints else found.wanted).append(line)


def _text_of(file: Path, shown: Path, root: Path) -> str:
    """Return the text of a requirements file; refuse one outside the project."""
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(os.path.realpath(root)):
        raise InputError(
            f"{shown} is outside the project {root}, so it is neither read nor sent",
            "Copy it into the project, or set 'python' of the machines in the blueprint.",
        )
    try:
        return read_bounded(real, LARGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {shown}: {error}", "Correct it, or remove it.") from None


def refuse_unsafe(steps: Iterable[PipStep], machine: str) -> None:
    """Refuse lines other than names with versions, and safe options, before pip runs here.

    Other lines could make pip build a source, which runs the project's code here, read a file of
    this machine, or send a variable of this environment (``${NAME}``) to a server.
    """
    for line in (line for s in steps for line in (s.requirements + s.constraints).splitlines()):
        head = re.sub(r"\s--hash[=\s]\S+", "", f" {line}").partition(";")[0].strip()
        named = _PLAIN.fullmatch(head) and " -" not in head
        plain = named and not head.lower().endswith(_ARCHIVES)
        if "${" in line or not (plain or _SAFE_OPTION.fullmatch(head)):
            raise InputError(
                f"{machine} reaches no package index, and '{line[:MOST_SHOWN]}' cannot be "
                f"fetched here: only packages with names and versions can",
                "Install the requirements there, and set that 'python' in the blueprint.",
            )


_PLAIN = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[A-Za-z0-9._,\s-]*\])?[\s()<>=!~A-Za-z0-9.*+,_-]*"
)
_ARCHIVES = (".whl", ".zip", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".tlz", ".lzma", ".tar")
_SAFE_OPTION = re.compile(
    r"--pre|--prefer-binary|--require-hashes"
    r"|(-i|--index-url|--extra-index-url)[=\s]\s*https?://\S+|--trusted-host[=\s]\s*\S+"
)


def _included(line: str) -> tuple[str, str | None]:
    """Return the option (``-r``, ``-c``) and the file of a line that includes a file."""
    found = re.fullmatch(r"(-r|-c|--requirement|--constraint)[\s=]*(.+)", line)
    try:
        return (found[1], shlex.split(found[2])[0]) if found else ("", None)
    except ValueError as error:
        raise InputError(f"'{line}' cannot be read: {error}", "Correct that line.") from None
