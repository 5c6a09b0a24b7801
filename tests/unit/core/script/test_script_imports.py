"""What is known of a script from its code, and hooks of what it imports."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from phalanx.core.script.import_hooks import ImportHooks
from phalanx.core.script.script_imports import imported_files, parse
from phalanx.core.script.training_code import may_train


def _package(folder: Path) -> None:
    for name in ("a.py", "p/__init__.py", "p/b.py", "p/q/__init__.py", "p/q/c.py", "p/q/d.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("train.py", "import a, missing, os.path", {"a.py"}),
        ("train.py", "import p.b as x", {"p/__init__.py", "p/b.py"}),
        ("train.py", "from p import b, something", {"p/__init__.py", "p/b.py"}),
        ("train.py", "from p import *", {"p/__init__.py"}),
        ("train.py", "def f():\n    import a", {"a.py"}),
        ("train.py", "import phalanx.train, phalanx", set()),
        ("p/q/c.py", "from . import d", {"p/q/d.py"}),
        ("p/q/c.py", "from .d import name", {"p/q/d.py"}),
        ("p/q/c.py", "from .. import b", {"p/b.py"}),
        ("p/q/c.py", "from ..b import name", {"p/b.py"}),
        ("p/q/c.py", "import a", {"a.py"}),
        ("p/q/c.py", "import d", set()),
        ("p/q/c.py", f"from {'.' * 200} import b", set()),
    ],
)
def test_the_files_that_imports_lead_to(
    tmp_path: Path, file: str, text: str, found: set[str]
) -> None:
    _package(tmp_path)
    (tmp_path / "phalanx").mkdir()
    (tmp_path / "phalanx" / "__init__.py").write_text("")
    tree = parse(text.encode())
    assert tree is not None
    files = set(imported_files(tree, tmp_path / file, [tmp_path]))
    assert files == {(tmp_path / name).resolve() for name in found}


@pytest.mark.parametrize("source", [b"def broken(:", b"\0", b"\xff\xfe"])
def test_what_is_not_python(source: bytes) -> None:
    assert parse(source) is None


SCRIPT = """
from helpers import learn, look

def fit(model, loader, optimizer):
    for x, y in loader:
        model(x).sum().backward()
        optimizer.step()

class Trainer:
    def one(self, batch):
        return learn(self.model, batch)

def score(model, x):
    return look(model(x))

def passed_on(loader):
    for batch in loader:
        yield batch
"""
HELPERS = (
    "def learn(model, batch):\n    model(batch).backward()\n\ndef look(out):\n    return out\n"
)


@pytest.mark.parametrize(
    ("body", "may"),
    [
        ("loss.backward()", True),
        ("total += score(model, x)", False),
        ("trainer.one(batch)", True),
        ("learn(model, batch)", True),
        ("total += look(x).sum()\ncount += len(x)", False),
        ("for step in range(3):\n    print(step)", False),
        ("scaler.step(optimizer)", True),
        ("grads = torch.autograd.grad(loss, p)", True),
        ("yield batch", True),
        ("backward(loss)", True),
    ],
)
def test_by_what_is_reached(tmp_path: Path, body: str, may: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helpers.py").write_text(HELPERS)
    files = frozenset({tmp_path / "train.py"})
    assert may_train(ast.parse(body).body, files) is may


def test_nothing_is_known_of_a_script_that_others_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for batch in loader:\n    learner.update(batch)\n")
    files = frozenset({tmp_path / "train.py"})
    assert may_train(ast.parse("learner.update(batch)").body, files)


def test_objects_that_are_called_may_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "class Step:\n    def __call__(self, batch):\n        self.loss(batch).backward()\n"
    )
    assert may_train(ast.parse("one(batch)").body, frozenset({tmp_path / "train.py"}))


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported, once."""
    (tmp_path / "made_for_hooks.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return "made_for_hooks"


def test_a_hook_waits_for_the_import(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks, seen = ImportHooks(), []
    hooks.add(made, seen.append)
    assert importlib.util.find_spec(made) is not None and seen == []  # asked for, not imported
    module = importlib.import_module(made)
    monkeypatch.delitem(sys.modules, made)
    assert seen == [module]
    importlib.import_module(made)
    monkeypatch.delitem(sys.modules, made)
    assert seen == [module]


def test_a_module_that_is_there_is_hooked_at_once() -> None:
    hooks, seen = ImportHooks(), []
    hooks.add("sys", seen.append)
    assert seen == [sys] and hooks not in sys.meta_path
