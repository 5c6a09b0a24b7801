"""Hooks of modules that a script imports later."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from phalanx.core.script.import_hooks import ImportHooks


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
