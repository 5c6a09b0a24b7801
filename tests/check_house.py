"""The house stays light: ``python tests/check_house.py`` prints one line per measure, lists what is
over its limit, and exits 1 if anything is.

Source files per folder, lines per file and function, names that stand twice, import circles (also
those of ``TYPE_CHECKING``), folders that import each other, what a local worker imports, callbacks
set by assignment, source lines.
"""

from __future__ import annotations

import ast
import functools
import itertools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "phalanx"
BETWEEN_HOSTS = (
    "sync.connect",
    "sync.store.remote",
    "sync.arena.remote",
    "sync.hosts",
    "sync.collective",
)
LOCAL_WORKER = """
import sys
from phalanx.core.settings import RunSettings
from phalanx.train.start.environment import Environment
import phalanx
from phalanx.launch.worker import bootstrap
from phalanx.train.api.join import join_with
from phalanx.core.spec.strategies import STRATEGIES
from phalanx.sync.arena import shm_arena
STRATEGIES.get("allreduce")
print("\\n".join(name for name in sys.modules if name.startswith("phalanx")))
"""


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_bytes()) for path in files()}


def crowded_folders(limit: int) -> Iterator[str]:
    for folder in sorted({path.parent for path in files()}):
        count = len(list(folder.glob("*.py")))
        if count > limit:
            yield f"{folder.relative_to(ROOT)}: {count} files"


def long_files(limit: int) -> Iterator[str]:
    for path in files():
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > limit:
            yield f"{path.relative_to(ROOT)}: {count} lines"


def long_functions(limit: int) -> Iterator[str]:
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or 0) - node.lineno + 1
                if count > limit:
                    yield f"{path.relative_to(ROOT)}: {node.name} has {count} lines"


def twice(limit: int) -> Iterator[str]:
    """Public classes of the same name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module(path))
    for name, places in sorted(found.items()):
        if len(places) > 1 + limit:
            yield f"{name}: {', '.join(places)}"


def imports(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Modules of ours that this one imports when it is imported itself, or for its types."""
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) not in lazy:
            yield from _imported(node, modules)


def _imported(node: ast.AST, modules: set[str]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("phalanx"):
        base = (node.module or "").removeprefix("phalanx").lstrip(".")
        for alias in node.names:
            inner = f"{base}.{alias.name}".lstrip(".")
            yield inner if inner in modules else base
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.startswith("phalanx"):
                yield alias.name.removeprefix("phalanx").lstrip(".")


def circles(limit: int) -> Iterator[str]:
    """Strongly connected modules (Tarjan 1972), whatever they import each other for."""
    parsed = trees()
    modules = {module(path) for path in parsed}
    graph = {module(p): set(imports(t, modules)) & modules for p, t in parsed.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            found, stack[at:] = stack[at:], []
            if len(found) > 1:
                yield found

    for name in sorted(graph):
        if name not in index:
            for found in visit(name):
                yield " ↔ ".join(sorted(found))


def mutual_folders(limit: int) -> Iterator[str]:
    """Folders that import each other, also inside functions. What lies in a folder counts as part
    of it, so a folder and one in it may."""
    parsed = trees()
    paths = {module(path): path for path in parsed}
    edges: dict[tuple[Path, Path], list[str]] = defaultdict(list)
    for path, tree in parsed.items():
        for name in (name for node in ast.walk(tree) for name in _imported(node, set(paths))):
            if name in paths:
                for pair in _apart(path.parent, paths[name].parent):
                    edges[pair].append(f"{module(path)} → {name}")
    found = [
        f"{_room(a)} ↔ {_room(b)}: {', '.join(min(edges[a, b], edges[b, a], key=len))}"
        for a, b in sorted(edges)
        if a < b and (b, a) in edges
    ]
    if len(found) > limit:
        yield from found


@functools.cache
def _apart(folder: Path, other: Path) -> list[tuple[Path, Path]]:
    """The two, and those around them, where neither has the other inside."""
    around = [
        [f for f in (inner, *inner.parents) if SOURCE in f.parents] for inner in (folder, other)
    ]
    return [
        (a, b)
        for a, b in itertools.product(*around)
        if a != b and a not in b.parents and b not in a.parents
    ]


def _room(folder: Path) -> str:
    return folder.relative_to(SOURCE).as_posix()


def local_worker(limit: int) -> Iterator[str]:
    """What a worker of a local ``allreduce`` imports."""
    words = [sys.executable, "-c", LOCAL_WORKER]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    found = [name.removeprefix("phalanx").lstrip(".") for name in ended.stdout.split()]
    if len(found) > limit:
        yield f"{len(found)} modules"
    for name in found:
        if name.startswith(BETWEEN_HOSTS):
            yield f"imported for networks it does not have: {name}"


def callbacks(limit: int) -> Iterator[str]:
    """``other.on_something = function``: what an object calls is handed to it when it is made."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign):
                continue
            for target in node.targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if _is_callback(one):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(one)}"


def _is_callback(target: ast.expr) -> bool:
    if not isinstance(target, ast.Attribute):
        return False
    own = isinstance(target.value, ast.Name) and target.value.id == "self"
    names = ("on_", "before_", "after_", "told_to_stop", "watcher", "hear", "survives", "stops_in")
    return not own and target.attr.startswith(names)


def small_files(limit: int) -> Iterator[str]:
    """Of all files but ``__init__.py``, those under 50 lines, in percent."""
    sizes = [
        len(p.read_text(encoding="utf-8").splitlines()) for p in files() if p.stem != "__init__"
    ]
    share = 100.0 * sum(size < 50 for size in sizes) / len(sizes)
    if share > limit:
        yield f"{share:.1f} %"


def packed_assignments(limit: int) -> Iterator[str]:
    """``a, b, c = x, y, z``: three values or more on one line."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
        and len(node.value.elts) > 2
    ]
    if len(found) > limit:
        yield f"{len(found)}, among them {found[-1]}"


def lines(limit: int) -> Iterator[str]:
    count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files())
    if count > limit:
        yield f"{count} source lines"


def unit_folders(limit: int) -> Iterator[str]:
    """Unit tests mirror the source: the tests of a folder lie at its place below tests/unit."""
    tests = ROOT / "tests" / "unit"
    for folder in sorted({path.parent.relative_to(tests) for path in tests.rglob("*.py")}):
        if not (SOURCE / folder).is_dir():
            yield f"tests/unit/{folder}: there is no src/phalanx/{folder}"


MEASURES = {
    "source files in a folder": (crowded_folders, 15),
    "lines of a file": (long_files, 400),
    "lines of a function": (long_functions, 60),
    "public class names that stand twice": (twice, 0),
    "import circles": (circles, 0),
    "folders that import each other": (mutual_folders, 0),
    "modules of a local worker": (local_worker, 130),
    "callbacks set by assignment": (callbacks, 0),
    "folders of tests/unit that the source does not have": (unit_folders, 0),
    "percent of files under 50 lines": (small_files, 15),
    "assignments of three values or more at once": (packed_assignments, 212),
    "source lines": (lines, 79_845),
}


def main() -> int:
    over = 0
    for name, (measure, limit) in MEASURES.items():
        found = list(measure(limit))
        over += len(found)
        print(f"{name} (at most {limit}): {f'{len(found)} over' if found else 'kept'}")
        for line in found:
            print(f"  {line}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
