"""Checks whether the Pythons of several machines can train together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from phalanx.core.errors import MachineError
from phalanx.launch.link.problems import as_one
from phalanx.launch.shipping.requirements import TLS_ONLY, WORKER_PACKAGES

OLDEST = (3, 11)
Words = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]
"""A text of one line, which is shown to the user."""


class Inspection(msgspec.Struct, frozen=True):
    """A Python on a machine, and the versions of the packages that were asked for."""

    executable: Words
    version: Words
    packages: dict[str, Words]
    platform: Words = ""
    libc: tuple[Words, Words] = ("", "")

    @property
    def minor(self) -> tuple[int, ...]:
        return numbers(self.version)[:2]


def numbers(version: str) -> tuple[int, ...]:
    """Return ``2.13.0+cpu`` as ``(2, 13, 0)``; stop at the first part that is no number."""
    found = []
    for part in version.partition("+")[0].split("."):
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)


def check_versions(found: Mapping[str, Inspection], *, tls: bool = False) -> list[str]:
    """Refuse machines' Pythons that cannot train together; return lines on harmless differences."""
    problems = {
        name: problem
        for name, python in found.items()
        if (problem := _too_old(name, python) or _lacking(name, python, tls))
    }
    if problems:
        raise as_one(problems)
    versions = {name: python.packages["torch"] for name, python in found.items()}
    if len({numbers(version)[:2] for version in versions.values()}) > 1:
        raise MachineError(
            f"the machines have different versions of torch: {_listed(versions)}",
            "Install the same one on each, or pin it in the project's requirements.txt.",
        )
    notes = []
    if len({numbers(version) for version in versions.values()}) > 1:
        notes.append(f"the machines have slightly different versions of torch: {_listed(versions)}")
    if len({python.minor for python in found.values()}) > 1:
        pythons = {name: python.version for name, python in found.items()}
        notes.append(f"the machines have different versions of Python: {_listed(pythons)}")
    return notes


def _too_old(name: str, python: Inspection) -> MachineError | None:
    if python.minor >= OLDEST:
        return None
    return MachineError(
        f"{name} has Python {python.version} ({python.executable}), but 3.11 or newer is needed",
        "Install one there, and set 'python' of that machine in the blueprint to it.",
    )


def _lacking(name: str, python: Inspection, tls: bool) -> MachineError | None:
    needed = [p for p in WORKER_PACKAGES if tls or p not in TLS_ONLY]
    missing = [package for package in needed if package not in python.packages]
    if not missing:
        return None
    return MachineError(
        f"{name}: {python.executable} has no {', '.join(missing)}",
        f"Run there: {python.executable} -m pip install {' '.join(missing)}   (or set 'python' "
        f"in the blueprint to one that has them, or add a requirements.txt to the project)",
    )


def _listed(versions: Mapping[str, str]) -> str:
    """Return versions as ``m1, m2 2.13.0; m3 2.11.0``."""
    by_version: dict[str, list[str]] = {}
    for name, version in versions.items():
        by_version.setdefault(version, []).append(name)
    return "; ".join(f"{', '.join(names)} {version}" for version, names in by_version.items())
