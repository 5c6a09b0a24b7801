from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.script.script_imports import imported_files, parse


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
