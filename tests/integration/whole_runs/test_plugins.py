"""A strategy, a data source and a report section from outside: one file and one line each."""

from __future__ import annotations

from pathlib import Path

from commands import last_json, phalanx, succeeds

PLUGIN = """
from phalanx.core.spec import Key, Traits, register_strategy
from phalanx.data.load import SOURCES
from phalanx.report.sections import REPORT_SECTIONS

register_strategy(
    "sometimes", "my_strategy:Sometimes",
    Traits("averages every few steps", lockstep=True, keys={"every": Key(int, 1, 100)}),
)
SOURCES.add("line", "my_source:line")
REPORT_SECTIONS.add("greeting", "my_section:greeting")
"""
STRATEGY = '''
from phalanx.sync.strategies.allreduce import AllReduce

class Sometimes(AllReduce):
    """All-reduce that counts, to show that it was used."""

    def __init__(self, context, every=2):
        super().__init__(context)
        self.every = every
        print(f"sometimes, every {every}")
'''
SOURCE = """
import torch

def line(folder):
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    return (x, 3 * x), (x, 3 * x), {"made": "here"}
"""
SECTION = """
from phalanx.report.sections import Section

def greeting(study):
    return Section("A section of mine", place=950, lead="hello from outside")
"""
SCRIPT = """
import torch, phalanx
train, test = phalanx.data.load("line")
model = torch.nn.Linear(1, 1)
phalanx.fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2), train=train, test=test,
            loss=torch.nn.functional.mse_loss, epochs=20, batch=16)
"""


def test_extensions_from_outside(tmp_path: Path) -> None:
    files = {
        "my_plugin": PLUGIN, "my_strategy": STRATEGY, "my_source": SOURCE, "my_section": SECTION,
        "train": SCRIPT,
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    outside = {"PHALANX_PLUGINS": "my_plugin", "PYTHONPATH": str(tmp_path)}
    ended = succeeds(
        "run", "train.py", "--workers", "2", "--strategy", "sometimes:every=3", "--json",
        cwd=tmp_path, **outside,
    )  # fmt: skip
    summary = last_json(ended.stdout)
    assert summary["strategy"] == "sometimes:every=3"
    assert summary["test_loss"] < 0.05
    assert "sometimes, every 3" in ended.stderr
    assert phalanx("report", cwd=tmp_path, **outside).returncode == 0
    assert "hello from outside" in next(tmp_path.glob("runs/*/report.html")).read_text()
