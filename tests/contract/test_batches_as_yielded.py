"""Batches reach the script as its own DataLoader yields them; models may answer as they like."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import as_ranks
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

import phalanx
from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.data.prefetch import move

Pair = namedtuple("Pair", ["x", "y"])  # as scripts have them
META = torch.device("meta")


@dataclass(frozen=True)
class Sample:
    x: Tensor
    y: Tensor
    note: str = ""


class Encoding(UserDict[str, Any]):
    """Like Hugging Face's BatchEncoding."""


class Opaque:
    """A batch of somebody's own, which knows how to move."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def to(self, device: Any) -> Opaque:
        return Opaque(self.x.to(device), self.y.to(device))


def _x_and_y(samples: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in samples]), torch.tensor([int(y) for _, y in samples])


FORMS: dict[str, Any] = {
    "tuple": tuple,
    "list": list,
    "dict": lambda p: {"x": p[0], "labels": p[1]},
    "dict with a text": lambda p: {"x": p[0], "label": p[1], "text": ["a"] * len(p[1])},
    "nested": lambda p: ({"x": p[0]}, p[1]),
    "namedtuple": lambda p: Pair(*p),
    "dataclass": lambda p: Sample(*p),
    "encoding": lambda p: Encoding(x=p[0], labels=p[1]),
    "opaque": lambda p: Opaque(*p),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Any) -> Tensor:
        return self.layer(x.x if isinstance(x, Opaque) else x)


def _data(samples: int = 22) -> TensorDataset:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, (x[:, 0] > 0).long())


def _loader(form: str) -> DataLoader[Any]:
    return DataLoader(
        _data(), batch_size=6, shuffle=True, collate_fn=lambda s: FORMS[form](_x_and_y(s))
    )


@pytest.mark.parametrize("form", FORMS)
def test_types_stay_on_the_way_to_a_device(form: str) -> None:
    batch = FORMS[form]((torch.ones(2, 4), torch.ones(2)))
    moved = move(batch, META)
    assert type(moved) is type(batch)
    found: Any = moved
    if form in ("dict", "dict with a text", "encoding"):
        found = list(moved.values())
    elif form == "nested":
        found = [moved[0]["x"], moved[1]]
    elif form in ("dataclass", "opaque"):
        found = [moved.x, moved.y]
    assert found[0].device == found[1].device == META
    assert not any(t.device == META for t in FORMS["list"]((torch.ones(1), torch.ones(1))))


def test_a_packed_sequence_keeps_its_sizes_on_the_host() -> None:
    packed = pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([3, 1]))
    moved = move(packed, META)
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device, moved.batch_sizes.device.type) == (META, "cpu")


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_yields_the_same_kinds_here_and_alone(tmp_path: Path, form: str) -> None:
    def work(rank: int) -> list[Any]:
        model = Net()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        found = list(run.batches(_loader(form)))
        run.finish()
        return found

    alone = next(iter(_loader(form)))
    for batches in as_ranks(2, tmp_path, work, RunSettings(strategy="async")):
        assert all(type(batch) is type(alone) for batch in batches)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (DataLoader(_data(), batch_size=6), list),
        (DataLoader(torch.ones(12, 2), batch_size=6), Tensor),
        (torch.ones(12, 2), Tensor),
        (_data(), list),
        (_data()[:], tuple),
    ],
)
def test_tensors_arrive_as_a_loader_of_them_yields_them(data: Any, kind: type) -> None:
    model = Net()
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert {type(batch) for batch in run.batches(data, batch=6)} == {kind}


@pytest.mark.parametrize("spec", ["allreduce", "async"])
@pytest.mark.parametrize("workers", [1, 2])
def test_one_pass_after_the_other(tmp_path: Path, spec: str, workers: int) -> None:
    def begun() -> tuple[Any, Any]:
        model = Net()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return run, iter(run.batches(_data(), batch=6))

    def nested(rank: int) -> None:
        run, outer = begun()
        next(outer)
        list(run.batches(_data(), batch=6))
        with pytest.raises(InputError, match="called again before its previous pass was over"):
            next(outer)

    def left(rank: int) -> int:
        run, outer = begun()
        next(outer)
        outer.close()  # as break does
        return len(list(run.batches(_data(), batch=6)))

    as_ranks(workers, tmp_path / "nested", nested, RunSettings(strategy=spec))
    assert sum(as_ranks(workers, tmp_path / "left", left, RunSettings(strategy=spec))) >= workers


@pytest.mark.parametrize("form", FORMS)
def test_fit_and_evaluate_take_every_kind(tmp_path: Path, form: str) -> None:
    def work(rank: int) -> tuple[float, float, Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = nn.functional.cross_entropy
        run = phalanx.fit(
            model, optimizer=optimizer, loss=loss, train=_loader(form), test=_loader(form), epochs=2
        )
        last = run.history[-1]
        return float(last["test_loss"]), float(last["test_accuracy"]), model.layer.weight.detach()

    found = as_ranks(2, tmp_path / "here", work, RunSettings())
    plain = as_ranks(2, tmp_path / "plain", lambda _: _plainly(), RunSettings())
    assert found[0][:2] == pytest.approx(plain[0][:2])
    assert torch.allclose(found[0][2], plain[0][2])


def _plainly() -> tuple[float, float, Tensor]:
    torch.manual_seed(0)
    model = Net()
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    figures = (0.0, 0.0)
    for _ in run.epochs(2):
        for x, y in run.batches(_data(), batch=6):
            run.backward(nn.functional.cross_entropy(model(x), y))
            run.step()
        error = run.evaluate(nn.functional.cross_entropy, _data())
        figures = error, run.evaluate(phalanx.accuracy, _data())
    return *figures, model.layer.weight.detach()


@dataclass
class Answer:
    loss: Tensor
    logits: Tensor


@pytest.mark.parametrize(
    "answer",
    [
        lambda loss, logits: Answer(loss, logits),
        lambda loss, logits: {"loss": loss, "logits": logits},
        lambda loss, logits: (loss, logits),
    ],
)
def test_models_that_compute_their_loss_need_none(tmp_path: Path, answer: Any) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor, labels: Tensor) -> Any:
            logits = self.layer(x)
            return answer(nn.functional.cross_entropy(logits, labels), logits)

    def work(rank: int) -> float:
        torch.manual_seed(0)
        model = Own()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        data = _loader("dict")
        run = phalanx.fit(model, optimizer=optimizer, train=data, test=data, epochs=2)
        return float(run.history[-1]["test_loss"])

    assert as_ranks(2, tmp_path, work, RunSettings())[0] < 0.7


def test_what_cannot_be_told_is_asked_for() -> None:
    class Two(nn.Module):
        def forward(self, image: Tensor, mask: Tensor) -> Tensor:
            return image * mask

    model = nn.ModuleList([Net(), Two()])
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InputError, match="forward=lambda model, batch"):
        run.evaluate(lambda o, y: 0.0, _loader("dict with a text"), model=model[1])
    swapped = run.evaluate(
        lambda o, y: (o == y).float().mean(), _loader("dict"),
        forward=lambda _, batch: (batch["labels"], batch["labels"]),
    )  # fmt: skip
    assert swapped == 1.0


class _Odd(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": torch.ones(1, 2, 2) * at}


def test_augmenting_what_has_no_first_part_is_refused() -> None:
    model = Net()
    run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InputError, match="which part of a dict holds the images"):
        next(iter(run.batches(_Odd(), batch=6, augment=lambda x, draws: x)))
