from __future__ import annotations

import ast
import subprocess
import sys

import msgspec
import pytest

from phalanx.launch.link.agent_link import agent_sources, boot_source

SOURCES: dict[str, str] = msgspec.json.decode(agent_sources())


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_an_old_python_can_read_it_and_has_all_that_it_imports(module: str) -> None:
    tree = ast.parse(SOURCES[module], feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in names:
            assert name.startswith("phalanx.agent") or name.split(".")[0] in sys.stdlib_module_names


def test_a_python_that_is_too_old_says_so() -> None:
    aged = f"import sys; sys.version_info = (3, 7, 1); exec({boot_source()!r})"
    ended = subprocess.run([sys.executable, "-c", aged, "0"], capture_output=True, text=True)
    assert ended.returncode == 9
    assert ended.stderr == "Phalanx needs Python 3.8 or newer, this is 3.7\n"


def test_sources_that_end_too_early_end_the_boot() -> None:
    words = [sys.executable, "-I", "-c", boot_source(), "100"]
    assert subprocess.run(words, input=b"{}", capture_output=True).returncode == 9
