"""``phalanx adapt``: scripts of many shapes become explicit, and train as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from adapted_shapes import HEAD, SHAPES, TQDM
from cli_support import Shell
from safetensors.torch import load_file

from phalanx.cli.adapt.rewriting import rewrite
from phalanx.core.errors import InputError
from phalanx.core.script.explained import Explanation

INPROCESS = ("--launcher", "inprocess")
ADDED = {
    "function": {
        "for i, (a, b) in enumerate(run.batches(loader)):", "run.step()  # the update",
        "global run", "run = phalanx.join(model, optimizer)", "for epoch in run.epochs(1, 3):",
    },
    "main": {
        "run = phalanx.join(model, optimizer)", "for epoch in run.epochs(epochs):",
        "for a, b in run.batches(train_loader):", "run.step()",
    },
    "module": {
        'run = phalanx.join(model, optimizer, loss="sum")', "for epoch in run.epochs(2):",
        "for number, batch in enumerate(run.batches(train_loader), 1):",
        "run.step(); optimizer.zero_grad()",
    },
    "trainer": {
        "self.run = phalanx.join(self.model, self.optimizer)",
        "for _ in self.run.epochs(epochs):",
        "for a, b in self.run.batches(self.loader):", "self.run.step()",
    },
    "gan": {
        "run = phalanx.join([judge, maker], [opt_judge, opt_maker])",
        "for epoch in run.epochs(2):", "for i, (a, b) in enumerate(run.batches(train_loader)):",
        "run.step(opt_judge)", "run.step(opt_maker)",
    },
    "scaler": {
        "run = phalanx.join(model, optimizer)", "for epoch in run.epochs(2):",
        "for a, b in run.batches(train_loader):",
    },
    "accumulation": {
        "run = phalanx.join(model, optimizer)", "for epoch in run.epochs(2):",
        "for i, (a, b) in enumerate(run.batches(train_loader)):", "run.step()",
    },
    "bar": {
        "run = phalanx.join(model, optimizer)", "for epoch in run.epochs(2):",
        "bar = tqdm(enumerate(run.batches(train_loader)), total=len(train_loader))", "run.step()",
    },
    "clip": {
        "run = phalanx.join(model, optimizer)", "for epoch in run.epochs(2):",
        "for a, b in run.batches(train_loader):", "run.step()",
    },
    "cycle": {
        "run = phalanx.join(model, [optimizers[0], optimizers[1]])",
        "for batch in run.batches(loader):", "run.step(optimizer)",
    },
    "nested": {
        "run = phalanx.join(model, optimizer)", "for a, b in run.batches(train_loader):",
        "run.step()",
    },
}  # fmt: skip

Adapt = Callable[[str], str]


@pytest.fixture
def adapted(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adapt:
    """The text of a script, made explicit."""
    library, project = tmp_path / "library", tmp_path / "project"
    library.mkdir()
    project.mkdir()
    (library / "tqdm.py").write_text(TQDM)
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.chdir(project)

    def adapt(text: str) -> str:
        (project / "train.py").write_bytes(text.encode())
        answer = shell("run", "--explain", "train.py", *INPROCESS, "--workers", "1", "--json")
        assert answer.code == 0, answer.err
        assert not list(tmp_path.glob("runs/*"))
        assert answer.json.pop("explain")
        found = msgspec.convert(
            {k: v for k, v in answer.json.items() if k != "explain"}, Explanation
        )
        return rewrite(found, text.encode()).after

    return adapt


def added(before: str, after: str) -> set[str]:
    return {line.strip() for line in after.splitlines()} - {
        line.strip() for line in before.splitlines()
    }


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_become_explicit(name: str, adapted: Adapt) -> None:
    after = adapted(SHAPES[name])
    assert added(SHAPES[name], after) == ADDED[name] | {"import phalanx"}
    assert "\nfrom torch.utils.data import DataLoader, TensorDataset\nimport phalanx\n" in after


@pytest.mark.parametrize("name", SHAPES)
def test_they_train_the_same_with_one_worker_and_with_two(
    name: str, adapted: Adapt, shell: Shell, tmp_path: Path
) -> None:
    Path("explicit.py").write_text(adapted(SHAPES[name]))
    weights = []
    for workers in ("1", "2"):
        answer = shell("run", "explicit.py", "--workers", workers, *INPROCESS, "--json")
        assert answer.code == 0, answer.err
        assert "was not written" not in answer.err
        weights.append(load_file(tmp_path / "runs" / answer.json["run"] / "model.safetensors"))
    for key, alone in weights[0].items():
        torch.testing.assert_close(weights[1][key], alone, rtol=1e-5, atol=1e-5)


def test_the_join_is_above_the_comment_of_the_loop(adapted: Adapt) -> None:
    lines = [line.strip() for line in adapted(SHAPES["main"]).splitlines()]
    at = lines.index("# Train.")
    assert lines[at - 1] == "run = phalanx.join(model, optimizer)"


@pytest.mark.parametrize("change", [
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace("    ", "\t"),
    lambda text: text.replace("for a, b in", "'größer ✓'; note = 'ä'\n        for a, b in"),
    lambda text: text.removesuffix("\n"),
])  # fmt: skip
def test_the_rest_of_the_text_stays_as_it_is(adapted: Adapt, change: Callable[[str], str]) -> None:
    before = change(SHAPES["main"])
    after = adapted(before)
    kept = [line for line in after.splitlines(keepends=True) if "phalanx" not in line]
    undone = "".join(kept).replace("run.epochs(", "range(").replace("run.step", "optimizer.step")
    assert undone.replace("run.batches(train_loader)", "train_loader") == before
    ends = {line[len(line.rstrip("\r\n")) :] for line in after.splitlines(keepends=True)}
    assert len(ends - {""}) == 1


def test_a_taken_name_is_not_used(adapted: Adapt) -> None:
    after = adapted(SHAPES["main"].replace("main", "run"))
    assert "training = phalanx.join(model, optimizer)" in after
    assert "training.batches(train_loader)" in after


def test_several_models_one_after_another(adapted: Adapt) -> None:
    after = adapted(
        HEAD
        + """
for fold in range(2):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1):
        for a, b in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
"""
    )
    assert "\n    run = phalanx.join(model, optimizer)\n    for epoch in run.epochs(1):" in after


def test_loaders_gone_through_by_hand(adapted: Adapt) -> None:
    after = adapted(
        HEAD
        + """
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(train_loader)
for step in range(20):
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(train_loader)
        continue
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(a), b).backward()
    optimizer.step()
"""
    )
    assert after.count("iter(run.batches(train_loader))") == 2
    assert "for step in range(20):" in after


MODEL = (
    HEAD
    + """
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
)
BODY = """
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
"""
REFUSED = {
    "several loaders": (
        MODEL + """
def one(loader, trains):
    model.train(trains)
    with torch.set_grad_enabled(trains):
        for a, b in loader:
            loss = nn.functional.cross_entropy(model(a), b)
            if trains:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

for epoch in range(2):
    one(train_loader, True)
    one(test_loader, False)
""",
        "one() of train.py is called with several loaders (test_loader, train_loader)",
    ),
    "no name": (
        MODEL + """
loaders = {"train": train_loader, "test": test_loader}
del train_loader
for epoch in range(2):
    for phase in ("train",):
        for a, b in loaders[phase]:
""" + BODY,
        "does not name its DataLoader",
    ),
    "wrapped once": (
        MODEL + """
from tqdm import tqdm

bar = tqdm(train_loader)
for epoch in range(2):
    if True:
        for a, b in bar:
""" + BODY,
        "wraps the DataLoader once for all epochs",
    ),
    "gradients after": (
        MODEL + """
for epoch in range(2):
    if True:
        for a, b in train_loader:
""" + BODY + "            print(model[0].weight.grad.norm())\n",
        "reads gradients after the step",
    ),
    "closure": (
        MODEL + """
for a, b in train_loader:
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
        "gives its step a closure",
    ),
    "lbfgs": (
        MODEL.replace("SGD", "LBFGS") + """
for a, b in train_loader:
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
        "LBFGS evaluates the loss several times",
    ),
    "own sampler": (
        MODEL
        + """
weights = torch.utils.data.WeightedRandomSampler([1.0] * 70, 70)
loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=weights)
for epoch in range(2):
    if True:
        for a, b in loader:
"""
        + BODY,
        "the DataLoader has a WeightedRandomSampler",
    ),
    "many trainings": (
        HEAD + """
for fold in range(2):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if True:
        for a, b in train_loader:
""" + BODY,
        "trains several times",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_certain_is_refused(name: str, adapted: Adapt) -> None:
    text, why = REFUSED[name]
    with pytest.raises(InputError) as refused:
        adapted(text)
    assert why in refused.value.cause
    assert refused.value.remedy
