"""Names that a shell would obey are refused; spaces, quotes and other alphabets simply work."""

from __future__ import annotations

import json
from pathlib import Path

from ssh_runs import Bench, nothing_left

ODD = "Größe $(touch x) `id` 'a' \"b\" ; & * ? ~ \\ 数据"
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from torch import nn
import phalanx

train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in run.epochs(1):
    for x, y in run.batches(train, batch=64):
        run.backward(nn.functional.cross_entropy(model(x), y))
        run.step()
read = Path(run.data, "unter Ordner", "däten 'a'.txt").read_text(encoding="utf-8")
beside = Path(__file__).with_name("neben dran ü.txt").read_text(encoding="utf-8")
told = {"arguments": sys.argv[1:], "script": Path(__file__).name,
        "data": read, "beside": beside}
Path(run.folder, f"rang {run.rank} ü.json").write_text(json.dumps(told))
"""


def test_odd_paths_and_arguments_simply_work(bench: Bench, tmp_path: Path) -> None:
    project, data = tmp_path / "mein 'Projekt' ü" / 'x "y" $z', tmp_path / "Daten für's Training"
    project.mkdir(parents=True)
    (project / "träin it's.py").write_text(SCRIPT)
    (project / "neben dran ü.txt").write_text("beside")
    (data / "unter Ordner").mkdir(parents=True)
    (data / "unter Ordner" / "däten 'a'.txt").write_text("read")
    bench.project = project
    words = ["--pool", str(bench.pool), "--data", str(data), "--name", "odd"]
    arguments = [ODD, "", " leading", "--epochs", "zwei\nZeilen", "-"]
    ended = bench.do("run", "träin it's.py", *words, "--", *arguments)
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 0
    for rank in range(2):
        home = next(bench.latest().rglob(f"rang {rank} ü.json"))
        found = json.loads(home.read_text())
        assert found["arguments"] == arguments
        assert found["script"] == "träin it's.py"
        assert (found["data"], found["beside"]) == ("read", "beside")


def test_odd_folder_on_the_machine(bench: Bench) -> None:
    folder = "/run/home/ein 'Ordner' ü $(id)"
    pool = bench.blueprint(m1={"folder": folder}, m2={"folder": folder})
    ended = bench.do("run", "train.py", "--pool", str(pool), "--epochs", "1")
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 0
    assert bench.summary()["exit_codes"] == [0, 0]
