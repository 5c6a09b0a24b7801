"""Checks the user's script before anything is started."""

from __future__ import annotations

import ast
import difflib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.script.packages import place_of
from phalanx.core.script.script_imports import imported, imported_files, parse

_ENTRIES = {"fit", "join", "keras"}
_CANNOT_TELL = {"import_module", "spec_from_file_location", "runpy", "exec", "__import__"}
"""Names by which a script may reach phalanx in ways that cannot be read from it."""
_TRAINS = {
    "torch", "torchvision", "transformers", "lightning", "pytorch_lightning", "accelerate", "keras"
}  # fmt: skip
_HAS_NO_GROUP = sys.stdlib_module_names | {
    "torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "PIL",
    "matplotlib", "tqdm",
}  # fmt: skip
"""Modules that start no process group by themselves."""
_MOST_FILES = 200


def check_script(path: Path, *, joins: bool = True) -> Path:
    """Return ``path`` if it is a script that can be run; syntax errors are left to the run.

    ``joins``: the script has to call Phalanx, or import a framework whose training it can adopt.
    """
    if path.is_dir():
        inside = next((f", such as '{file}'" for file in sorted(path.glob("*.py"))), "")
        remedy = f"Name a file in it{inside}." if inside else "Name a .py file."
        raise InputError(f"'{path}' is a folder, not a script", remedy)
    if not path.exists():
        raise InputError(f"there is no script '{path}'", _suggest_near(path))
    if not path.is_file():
        raise InputError(f"'{path}' is not a regular file", "Name a .py file.")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read '{path}': {error.strerror}", "Check the permissions of the file."
        ) from error
    if joins and not _look(path, source).can_train:
        raise InputError(
            f"'{path}' calls neither phalanx.fit nor phalanx.join, and does not use torch",
            _remedy_for(source),
        )
    return path


def is_adopted(script: Path) -> bool:
    """Whether the script does not call Phalanx, which then finds its model while it runs.

    True if that is unclear; a call of Phalanx at run time then ends the adoption.
    """
    return not _look(script, script.read_bytes()).calls


def uses_keras(script: Path) -> bool:
    look = _look(script, script.read_bytes())
    return look.keras or "keras" in look.imports


def may_call_phalanx(script: Path) -> bool:
    look = _look(script, script.read_bytes())
    return look.calls or look.unclear


def starts_no_group(script: Path) -> bool:
    """Whether processes of the script cannot find each other: it does not use ``torch.distributed``
    itself, and imports nothing else that might."""
    look = _look(script, script.read_bytes())
    return not (look.unclear or look.distributed or look.imports - look.own - _HAS_NO_GROUP)


@dataclass
class _Look:
    """What the sources of a script, and of its own modules, show."""

    calls: bool = False
    """Whether the script calls Phalanx."""
    unclear: bool = False
    """Whether the script may call Phalanx in a way that cannot be read from it."""
    imports: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    """Names of the script's own modules, as far as they were found."""
    distributed: bool = False
    """Whether the script names ``distributed``, as all that use ``torch.distributed`` do."""
    keras: bool = False
    """Whether the script names ``keras`` (or ``tf.keras``), and never ``distribute``."""

    @property
    def can_train(self) -> bool:
        keras = self.keras and "tensorflow" in self.imports
        return self.calls or self.unclear or keras or bool(self.imports & _TRAINS)


def _remedy_for(source: bytes) -> str:
    """Return advice for a script that neither calls Phalanx nor can be adopted."""
    if b"tf.distribute" in source or b"tensorflow" in source:
        return (
            "It uses TensorFlow: run it unchanged with --framework tensorflow, or let Phalanx "
            "distribute its model.fit with --framework keras"
        )
    return (
        "Keep your loop with run = phalanx.join(model, optimizer), or let "
        "phalanx.fit(model, optimizer=opt, loss=loss, train=train) be the loop."
    )


def _look(script: Path, source: bytes) -> _Look:
    """Read the script and the modules of the user that it imports."""
    above = place_of(script.resolve()).root
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    folders = [script.resolve().parent, above, Path.cwd(), *map(Path, named)]
    waiting, seen, found = [(script, source)], {script.resolve()}, _Look()
    while waiting and len(seen) < _MOST_FILES:
        file, text = waiting.pop()
        tree = parse(text)
        if tree is None:
            found.unclear = True
            continue
        _look_at(tree, found)
        if found.calls:
            return found
        file = file.resolve()
        for module in imported_files(tree, file, [file.parent, *folders]):
            found.own |= {module.stem, module.parent.name}
            if module not in seen and os.access(module, os.R_OK):
                seen.add(module)
                waiting.append((module, module.read_bytes()))
    found.unclear = found.unclear or bool(waiting)
    return found


def _look_at(tree: ast.AST, found: _Look) -> None:
    ours, words = {"phalanx"}, set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                ours |= {a.asname for a in names if a.name == "phalanx" and a.asname}
                words |= {part for a in names for part in a.name.split(".")}
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                given = {alias.name for alias in names}
                words |= given | set(module.split("."))
                if module.partition(".")[0] == "phalanx" and given & {*_ENTRIES, "*"}:
                    found.calls = True
            case ast.Name(id=name) | ast.Attribute(attr=name):
                words.add(name)
    found.imports |= {name.partition(".")[0] for _, name in imported(tree)}
    found.keras = found.keras or ("keras" in words and "distribute" not in words)
    found.distributed = found.distributed or "distributed" in words
    found.unclear = found.unclear or bool(words & _CANNOT_TELL)
    found.calls = found.calls or ("phalanx" in words and any(_entered(tree, ours)))


def _entered(tree: ast.AST, ours: set[str]) -> Iterator[bool]:
    """Yield, for each use of the module phalanx, whether it may be of one of ``_ENTRIES``."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ours and node.attr not in _ENTRIES:
                harmless.add(node.value)
        elif isinstance(node, ast.Name) and node.id in ours:
            yield node not in harmless


def _suggest_near(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder '{folder}' either."
    scripts = sorted(file.stem for file in folder.glob("*.py"))
    # Compare names without '.py', which would make all of them similar.
    near = difflib.get_close_matches(path.name.removesuffix(".py"), scripts, n=1, cutoff=0.8)
    if near:
        return f"Did you mean '{folder / near[0]}.py'?"
    return "Check the path; it is relative to the folder you are in."
