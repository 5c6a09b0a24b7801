"""Manifests of what a machine is sent only once: our code, ``--data``, a checkpoint."""

from __future__ import annotations

from pathlib import Path

import phalanx
from phalanx.core.errors import InputError
from phalanx.launch.shipping.listing import walk
from phalanx.launch.shipping.manifest import FileManifest, make_manifest

BEST, MANIFEST = "best.safetensors", "manifest.json"


def data_manifest(folder: Path, follow: bool = False) -> tuple[Path, FileManifest]:
    """Return the folder and the manifest of all that is in it; nothing is ignored."""
    if not folder.is_dir():
        raise InputError(f"--data {folder} is not a folder", "Name the folder that holds the data.")
    root = folder.resolve()
    return root, make_manifest(root, walk(root, lambda path, is_folder: False, follow=follow))


def checkpoint_manifest(checkpoint: Path) -> tuple[Path, FileManifest]:
    """Return a checkpoint's root and manifest, with the best model of its run if that is older."""
    folder = checkpoint.resolve()
    root, own = folder.parent.parent, f"{folder.parent.name}/{folder.name}"
    with_best = _is_older(root / BEST, folder)

    def left_out(path: str, is_folder: bool) -> bool:
        if path == BEST:
            return not with_best
        return not (path.startswith(own) or (is_folder and own.startswith(path)))

    return root, make_manifest(root, walk(root, left_out))


def _is_older(best: Path, checkpoint: Path) -> bool:
    """Whether the best model is older than the checkpoint; a newer one is not sent."""
    try:
        return best.stat().st_mtime <= (checkpoint / MANIFEST).stat().st_mtime
    except OSError:
        return False


def code_root() -> Path:
    """Return the folder from which Phalanx is imported."""
    return Path(phalanx.__file__).resolve().parent.parent


def code_manifest() -> tuple[Path, FileManifest]:
    """Return the folder of our code, and the manifest of the package in it (paths begin with
    ``phalanx/``)."""
    return code_root(), make_manifest(code_root(), walk(code_root(), _left_out))


def _left_out(path: str, is_folder: bool) -> bool:
    """Whether a path is left out: all paths beside the package, and compiled code."""
    first, _, _ = path.partition("/")
    return first != "phalanx" or path.endswith((".pyc", "__pycache__"))
