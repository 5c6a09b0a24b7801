"""Phalanx's own package, as it is here: the machines run the same."""

from __future__ import annotations

from pathlib import Path

import phalanx
from phalanx.launch.shipping.hashes import make_manifest
from phalanx.launch.shipping.listing import walk
from phalanx.launch.shipping.manifest import FileManifest


def code_root() -> Path:
    """The folder that Phalanx is imported from."""
    return Path(phalanx.__file__).resolve().parent.parent


def code_manifest() -> tuple[Path, FileManifest]:
    """That folder, and the manifest of the package in it (paths begin with ``phalanx/``)."""
    return code_root(), make_manifest(code_root(), walk(code_root(), _left_out))


def _left_out(path: str, is_folder: bool) -> bool:
    """Of what lies beside the package, everything."""
    first, _, _ = path.partition("/")
    return first != "phalanx" or path.endswith((".pyc", "__pycache__"))
