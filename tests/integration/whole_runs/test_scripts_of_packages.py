"""Scripts inside packages, and processes that a script starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import last_json, phalanx, succeeds

MODEL = "from torch import nn\n\ndef make():\n    return nn.Linear(4, 2)\n"
TRAIN = """
import sys, torch, phalanx
from torch import nn
from .model import make
from pkg.model import make as again

assert (__name__, __package__) == ("__main__", "pkg") and make is again
model = make()
x = torch.randn(32, 4)
phalanx.fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=nn.functional.cross_entropy, train=(x, (x[:, 0] > 0).long()), epochs=1, batch=8)
"""
SPAWNS = """
import multiprocessing, torch, phalanx
from torch import nn
from .model import make

model = make()
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
process = multiprocessing.get_context("spawn").Process(target=print)
if __name__ == "__main__":
    process.start()
    process.join()
    (run.folder / f"{run.rank}").write_text(str(process.exitcode))
    for x in run.batches(torch.ones(16, 4), batch=8):
        run.backward(model(x).mean())
        run.step()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pkg"
    folder.mkdir()
    for name, text in (("__init__", ""), ("model", MODEL), ("train", TRAIN), ("spawns", SPAWNS)):
        (folder / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize("launcher", ["local", pytest.param("inprocess", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "words", [["-m", "pkg.train"], pytest.param(["pkg/train.py"], marks=pytest.mark.slow)]
)
def test_relative_imports_and_modules(package: Path, words: list[str], launcher: str) -> None:
    ended = succeeds("run", *words, "--workers", "1", "--launcher", launcher, "--json", cwd=package)
    assert last_json(ended.stdout)["status"] == "done"


def test_a_missing_module_is_named(package: Path) -> None:
    ended = phalanx("run", "-m", "pkg.nothing", cwd=package)
    assert ended.returncode == 2
    assert "there is no module 'pkg.nothing' in this folder" in ended.stderr


@pytest.mark.slow
def test_a_process_that_the_script_starts_does_not_join(package: Path) -> None:
    ended = phalanx("run", "-m", "pkg.spawns", "--workers", "2", "--json", cwd=package, limit=240)
    assert ended.returncode == 0, ended.stderr
    folder = package / "runs" / last_json(ended.stdout)["run"]
    assert [(folder / "files" / str(rank)).read_text() for rank in range(2)] == ["1", "1"]
    said = "phalanx.join was called in a process that a worker's script has started"
    assert said in (folder / "logs" / "rank-1.log").read_text()
