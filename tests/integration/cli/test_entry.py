"""Ctrl-C before there is a command to stop: while the modules are being imported."""

from __future__ import annotations

import ast
from pathlib import Path

from commands import python

from phalanx.cli import entry
from phalanx.core.errors import STOPPED

INTERRUPTED = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["phalanx", "runs"]
runpy.run_module("phalanx", run_name="__main__")
"""


def test_an_interrupt_while_loading_is_quiet(tmp_path: Path) -> None:
    for name in ("typer", "phalanx.cli.main", "phalanx.cli.request.values"):
        code = INTERRUPTED.format(name=name)
        ended = python("-c", code, cwd=tmp_path)
        assert ended.returncode == STOPPED == entry.STOPPED, name
        assert "Traceback" not in ended.stderr


def test_nothing_heavy_stands_before_it() -> None:
    tree = ast.parse(Path(entry.__file__).read_bytes())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["import sys"]
