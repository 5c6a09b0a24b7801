"""``phalanx run --explain``: what adoption finds, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapted_shapes import HEAD, SHAPES
from cli_support import Shell

INPROCESS = ("--launcher", "inprocess", "--workers", "1")
RICH = (
    HEAD.replace("nn.Tanh()", "nn.BatchNorm1d(5), nn.Dropout(0.1)")
    + """
class Own(torch.utils.data.Dataset):
    def __len__(self):
        return 70

    def __getitem__(self, index):
        return x[index], y[index]


model = make()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
for epoch in range(5):
    for a, b in DataLoader(Own(), batch_size=16):
        loss = nn.functional.cross_entropy(model(a), b, weight=torch.tensor([1.0, 2.0]))
        loss.backward()
        optimizer.step()
    raise SystemExit("it went on")
"""
)


def test_it_says_what_was_found(shell: Shell) -> None:
    shell.script(SHAPES["function"])
    answer = shell("run", "--explain", "train.py", *INPROCESS)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == [
        "train.py is adopted as it is:",
        "  models        Sequential, 47 parameters: 'model' in main() of train.py",
        "  optimizers    SGD, learning rate 0.1, made at train.py:34",
        "  data          TensorDataset, 70 samples, shuffled: global batch 8, 9 batches",
        "                per epoch, loop at train.py:18",
        "  epochs        2",
        "  loss          a mean over the batch",
        "  schedulers    StepLR",
        "  evaluation    every worker sees the whole evaluation set",
        "  not as alone  random numbers drawn in the loop: each worker draws its own",
    ]
    assert not shell.runs.exists()


def test_it_says_what_is_not_as_alone(shell: Shell) -> None:
    shell.script(RICH)
    answer = shell("run", "--explain", "train.py", *INPROCESS)
    assert answer.code == 0, answer.err
    assert "weighted mean" in answer.out
    assert "CosineAnnealingLR" in answer.out
    assert "not shuffled" in answer.out
    assert "batch norm" in answer.out
    assert "dropout and random" in answer.out
    assert "random transforms are seeded" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_what_several_workers_refuse_is_said(shell: Shell) -> None:
    shell.script(
        HEAD
        + """
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for a, b in train_loader:
    nn.functional.mse_loss(model(a)[:, 0], b.float()).sqrt().backward()
    optimizer.step()
"""
    )
    answer = shell("run", "--explain", "train.py", *INPROCESS)
    assert answer.code == 0, answer.err
    assert "neither a mean nor a sum" in answer.out
    assert "refused       with several workers: the loss is a function of the" in answer.out


def test_json_says_the_same(shell: Shell) -> None:
    shell.script(SHAPES["gan"])
    answer = shell("run", "--explain", "train.py", *INPROCESS, "--json")
    found = answer.json
    assert found["explain"] and not found["joins"]
    assert [model["name"] for model in found["models"]] == ["judge", "maker"]
    assert [optimizer["rate"] for optimizer in found["optimizers"]] == [0.1, 0.1]
    assert (found["data"]["batch"], found["data"]["shuffled"], found["epochs"]) == (8, True, 2)
    assert len(answer.out.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import phalanx, torch\nphalanx.join(1, 2)\n",
        'import torch\nexec("import phalanx as p; p.join(torch.nn.Linear(1, 1), [])")\n',
    ],
)
def test_a_script_that_calls_phalanx_is_not_adopted(shell: Shell, text: str) -> None:
    shell.script(text)
    answer = shell("run", "--explain", "train.py", *INPROCESS)
    assert (answer.code, answer.out.splitlines()) == (
        0,
        ["train.py calls Phalanx itself: nothing of it is adopted."],
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("make()(x).sum().backward()\n", "error: the script computes gradients, but has made no"),
        (
            "model = make()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "model(x).sum().backward()\noptimizer.step()\n",
            "error: the script called optimizer.step() on a batch that Phalanx cannot share out",
        ),
        ("print('no training')\n", "error: train.py never called phalanx.fit or phalanx.join"),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_what_would_be_refused_is_refused(shell: Shell, text: str, error: str) -> None:
    shell.script(HEAD + text)
    answer = shell("run", "--explain", "train.py", *INPROCESS)
    assert answer.code in (1, 2)
    assert error in answer.err
    assert not shell.runs.exists()


@pytest.mark.parametrize("option", [("--dry-run",), ("--framework", "torch")])
def test_options_that_do_not_go_together(shell: Shell, option: tuple[str, ...]) -> None:
    shell.script(HEAD)
    answer = shell("run", "--explain", "train.py", *option)
    assert answer.code == 2
    assert f"--explain and {option[0]} cannot be combined" in answer.err


def test_a_file_of_another_folder_is_no_place(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "loops").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "loops" / "engine.py").write_text(
        "def train(model, loader, optimizer, loss):\n"
        "    for a, b in loader:\n"
        "        optimizer.zero_grad()\n"
        "        loss(model(a), b).backward()\n"
        "        optimizer.step()\n"
    )
    shell.script(
        HEAD
        + """
import sys
sys.path.append("loops")
from engine import train

model = make()
train(model, train_loader, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
""",
        "project/train.py",
    )
    answer = shell("run", "--explain", "project/train.py", *INPROCESS)
    assert answer.code == 0, answer.err
    assert "(inside engine)" in answer.out
