"""Whether a loop may train, by the names that it reaches."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from phalanx.core.script.training_code import may_train

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
