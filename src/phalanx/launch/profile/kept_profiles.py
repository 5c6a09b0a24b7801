"""Profiles that were made before, by the content of what they depend on."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from phalanx.core.errors import PhalanxError
from phalanx.core.files import cache_home, read_bounded, write_whole
from phalanx.core.script.script_imports import script_files
from phalanx.core.settings import RunSettings
from phalanx.core.version import __version__
from phalanx.launch.shipping.requirements import installed
from phalanx.plan.job import JobProfile

_LARGEST = 4 << 20


def job_key(script: Path, arguments: Sequence[str], chosen: RunSettings) -> str:
    """A digest of what a job's costs depend on, besides the machine."""
    digest = hashlib.sha256()
    plain = msgspec.structs.replace(chosen, profile=None, virtual=None, seed=0, strategy="single")
    for file in script_files(script):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    rest = [str(script.resolve()), *arguments, plain.to_json(), __version__]
    rest.append(installed(("torch",)).get("torch", ""))
    digest.update(msgspec.json.encode(rest))
    return digest.hexdigest()


def _file(key: str, kind: str) -> Path:
    name = hashlib.sha256(f"{key} {kind}".encode()).hexdigest()
    return cache_home() / "profiles" / f"{name}.json"


def read_kept(key: str, kind: str) -> JobProfile | None:
    """``None`` also where the file is damaged: it is written anew."""
    try:
        kept = msgspec.json.decode(read_bounded(_file(key, kind), _LARGEST), type=JobProfile)
    except (OSError, PhalanxError, msgspec.MsgspecError):
        return None
    return kept if kept.key == key and len(kept.costs) == 1 else None


def keep(key: str, kind: str, profile: JobProfile) -> None:
    path = _file(key, kind)
    with contextlib.suppress(OSError):  # it only makes the next plan faster
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(profile))
