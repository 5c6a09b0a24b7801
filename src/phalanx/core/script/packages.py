"""Finds the package that a script is a module of, for relative imports and ``-m``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from phalanx.core.errors import InputError


@dataclass(frozen=True)
class ScriptPlace:
    """Where a script stands among modules; ``package`` is empty for one that stands alone."""

    package: str
    root: Path
    """The folder from which the package is imported."""

    def spec(self, script: Path) -> ModuleSpec:
        """The module spec by which processes that the script starts can import it."""
        return ModuleSpec(f"{self.package}.{script.stem}", None, origin=str(script))


def place_of(script: Path, module: str | None = None) -> ScriptPlace:
    """``module``: the name that it was asked for by; else the ``__init__.py`` files beside it."""
    folder = script.absolute().parent
    if module is not None:
        for _ in range(module.count(".")):
            folder = folder.parent
        return ScriptPlace(module.rpartition(".")[0], folder)
    names: list[str] = []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ScriptPlace(".".join(names), folder)


def module_file(name: str, folder: Path) -> tuple[Path, str]:
    """The file that ``python -m NAME`` runs from ``folder``, and the name of its module."""
    place = folder.joinpath(*name.split("."))
    for file, found in (
        (place.with_suffix(".py"), name),
        (place / "__main__.py", f"{name}.__main__"),
    ):
        if all(part.isidentifier() for part in name.split(".")) and file.is_file():
            return file, found
    raise InputError(
        f"there is no module '{name}' in this folder",
        f"Change to the folder that has {name.replace('.', '/')}.py, or correct the name.",
    )
