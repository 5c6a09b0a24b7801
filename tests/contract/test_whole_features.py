"""Scripts to which a batch means something, in view ``whole``: every worker ends as plain Python.

Losses over a batch, models that mix its rows or keep something, gradients of gradients, what is
counted by samples: weights, losses, rates and steps of each worker are those of one process.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from adopted_runs import Result, adopted, alone
from devices import AWAY
from hypothesis import given, reject
from hypothesis import strategies as st
from on_hosts import HOSTS
from strategy_cases import examples
from whole_scripts import WholeScript, script_of, text_of

from phalanx.core.errors import InputError
from phalanx.train.adopt.adopted_training import AdoptedTraining
from phalanx.train.whole.calls import SharedCalls

pytestmark = pytest.mark.skipif(AWAY or HOSTS > 1, reason="held against plain Python, in turns")
Folders = pytest.TempPathFactory
SCRIPTS = st.integers(0, 1 << 40).map(script_of)
SHARES = st.sampled_from(((1, 1), (1, 1, 1), (3, 1), (1, 4), (3, 1, 2)))


@contextmanager
def _sharing(shares: Sequence[float]) -> Iterator[None]:
    plain = SharedCalls.__init__

    def init(self: SharedCalls, collective: object, _: object, *given: object) -> None:
        plain(self, collective, lambda: shares, *given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(SharedCalls, "__init__", init)
        yield


def _assert_same(found: Result, wanted: Result, tolerance: float) -> None:
    assert found["steps"] == wanted["steps"]
    assert found["rates"] == pytest.approx(wanted["rates"], rel=1e-10)
    assert found["losses"] == pytest.approx(wanted["losses"], rel=tolerance, abs=tolerance)
    assert found["weights"].keys() == wanted["weights"].keys()
    for name, value in wanted["weights"].items():
        scale = max(1.0, float(value.abs().max()))
        gap = float((found["weights"][name] - value).abs().max())
        assert gap <= tolerance * scale, f"{name}: {gap:.1e} apart"


def hold(script: WholeScript, shares: Sequence[float], folder: Path) -> None:
    """Each of the workers ends as plain Python does."""
    path = folder / "train.py"
    path.write_text(text_of(script), encoding="utf-8")
    with _sharing(shares):
        try:
            wanted = alone(path)
        except (RuntimeError, ValueError):  # batch norm of one sample, for example
            reject()
        if not all(map(math.isfinite, wanted["losses"])):
            reject()
        settings = {"strategy": "allreduce", "view": "whole"}
        for ended in adopted(path, len(shares), folder / "run", **settings):
            _assert_same(ended.result, wanted, script.tolerance)
    assert torch.is_grad_enabled()


@examples(15)
@given(script=SCRIPTS, shares=SHARES)
def test_whole_features(
    tmp_path_factory: Folders, script: WholeScript, shares: Sequence[float]
) -> None:
    hold(script, shares, tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
@pytest.mark.timeout(2400)
@examples(300)
@given(script=SCRIPTS, shares=SHARES)
def test_three_hundred_of_features(
    tmp_path_factory: Folders, script: WholeScript, shares: Sequence[float]
) -> None:
    hold(script, shares, tmp_path_factory.mktemp("whole"))


HEAD = text_of(script_of(0)).split("losses, rates")[0] + "losses, rates = [], []\n"
STEP = """
{0}optimizer.zero_grad()
{0}loss = LOSS
{0}loss.backward()
{0}optimizer.step()
{0}state["step"] += 1
{0}losses.append(float(loss))
"""
END = """
RESULT = {"weights": WEIGHTS, "losses": losses, "rates": rates, "steps": state["step"]}
"""
LOADER = "DataLoader(TensorDataset(x_all), batch_size=4)"


def _script(folder: Path, text: str, loss: str, weights: str = "model.state_dict()") -> Path:
    """``text`` goes through a loader; each ``STEP`` in it is a step, as deep as it stands."""
    for pad in ("        ", "    "):
        text = text.replace(f"{pad}STEP\n", STEP.format(pad).lstrip("\n"))
    path = folder / "train.py"
    whole = (HEAD + text + END).replace("LOSS", loss).replace("WEIGHTS", weights)
    path.write_text(whole.replace("LOADER", LOADER), encoding="utf-8")
    return path


CALLS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.calls = nn.Linear(6, 3).double(), 0

    def forward(self, x):
        self.calls += 1
        return FORWARD

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(8):
    for (x,) in LOADER:
        STEP
"""


@pytest.mark.parametrize(
    ("forward", "given", "said"),
    [
        ("self.first(x - (x.mean(0) if self.calls > 5 else 0))", "x", "row by row any more"),
        ("self.first(x)", "x + float(np.random.default_rng().random())",
         "with different batches"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_said(tmp_path: Path, forward: str, given: str, said: str) -> None:
    text = CALLS.replace("FORWARD", forward)
    script = _script(tmp_path, text, f"model({given}).pow(2).mean()")
    with pytest.raises(InputError, match=said):
        adopted(script, 2, tmp_path / "run", strategy="allreduce", view="whole")


LATER = """
for number in range(2):  # the second one is made, and traced, while the first one trains
    made = nn.Sequential(nn.Linear(6, 3), nn.Tanh()).double()
    model = torch.jit.trace(made, torch.zeros(2, 6, dtype=torch.float64)) if number else made
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in LOADER:
        STEP
"""
SECOND_DIMENSION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(6, 3)
    def forward(self, x):
        return self.inner(x)[0]
model = Net().double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in LOADER:
    STEP
"""
STACKED = "model(torch.stack([x, -x, x.flip(1)])).view(-1, 3).pow(2).mean()"  # contiguous outputs
SPARSE = """
class Both:
    def zero_grad(self): [one.zero_grad() for one in optimizers]
    def step(self): [one.step() for one in optimizers]

bag, line = nn.Embedding(9, 4, sparse=True).double(), nn.Linear(4, 1).double()
optimizers, optimizer = OPTIMIZERS, Both()
for epoch in range(3):
    for (x,) in DataLoader(TensorDataset(torch.arange(48).reshape(16, 3) % 9), batch_size=4):
        STEP
"""
ADAM = "[torch.optim.SparseAdam(bag.parameters(), 0.1), torch.optim.Adam(line.parameters())]"
SGD = "[torch.optim.SGD([*bag.parameters(), *line.parameters()], lr=0.1)]"
BAG = "line(bag(x).mean(1)).add(1.0).pow(2).mean()"
TRAINED = "{**bag.state_dict(), 'line': line.weight.detach()}"
SQUARES = "model(x).pow(2).mean()"


@pytest.mark.parametrize(
    ("text", "loss", "weights"),
    [
        (LATER, SQUARES, "model.state_dict()"),
        (SECOND_DIMENSION, STACKED, "model.state_dict()"),
        (SPARSE.replace("OPTIMIZERS", ADAM), BAG, TRAINED),
        (SPARSE.replace("OPTIMIZERS", SGD), BAG, TRAINED),
    ],
    ids=["traced", "viewed", "sparse adam", "sparse sgd"],
)
def test_as_alone(tmp_path: Path, text: str, loss: str, weights: str) -> None:
    script = _script(tmp_path, text, loss, weights)
    wanted = alone(script)
    for ended in adopted(script, 2, tmp_path / "run", strategy="allreduce", view="whole"):
        _assert_same(ended.result, wanted, 1e-10)


FOLDS = """
def fold(number):
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh()).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for (x,) in LOADER:
        STEP
    schedule.step()
    return {f"{number}.{name}": value for name, value in model.state_dict().items()}
weights = {name: value for number in range(3) for name, value in fold(number).items()}
"""


@pytest.mark.parametrize("view", ["whole", "parts"])
def test_a_fold_knows_nothing_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    script, trained = _script(tmp_path, FOLDS, SQUARES, "weights"), list[int]()
    wanted, plain = alone(script), AdoptedTraining.__init__

    def init(self: AdoptedTraining, *given: Any) -> None:
        trained.append(len(given[0].trained.optimizers))
        plain(self, *given)

    monkeypatch.setattr(AdoptedTraining, "__init__", init)
    for ended in adopted(script, 2, tmp_path / "run", strategy="allreduce", view=view):
        assert ended.result["weights"].keys() == wanted["weights"].keys()
        for name, value in wanted["weights"].items():
            torch.testing.assert_close(ended.result["weights"][name], value, rtol=0, atol=1e-10)
    if view == "whole":  # elsewhere threads keep each other's objects
        assert trained == [1] * 6, "each training has the optimizer of its fold"
