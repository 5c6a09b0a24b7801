"""``--precision``: what is tried where, which of it is kept, and that a trial leaves no trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import as_ranks
from torch import nn

import phalanx
from phalanx.core import settings
from phalanx.core.context import current
from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.train.figures.model_calls import call_model
from phalanx.train.worker import precision

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
MATMUL: Any = torch.backends.cuda.matmul
CUDNN: Any = torch.backends.cudnn


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """By its parameter: the compute capability of a GPU, or whether a processor has bfloat16."""
    capability = request.param
    on_cpu = isinstance(capability, bool)
    bfloat16 = capability if on_cpu else capability >= (8, 0)
    monkeypatch.setattr(precision, "supports_bfloat16", lambda _: bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    return CPU if on_cpu else GPU


@pytest.fixture
def switches() -> Iterator[None]:
    """Put back by the older interface first, which sets the newer one too."""
    yield
    MATMUL.allow_tf32, CUDNN.allow_tf32 = False, True
    MATMUL.fp32_precision = "none"


def _switches() -> list[object]:
    """As both interfaces of torch tell; reading one that the other contradicts is an error."""
    return [
        MATMUL.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision,
        MATMUL.allow_tf32, CUDNN.allow_tf32, torch.get_float32_matmul_precision(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "tried"),
    [
        ((9, 0), ["float32", "tf32", "bfloat16"]),
        ((8, 0), ["float32", "tf32", "bfloat16"]),
        ((7, 5), ["float32", "float16"]),
        ((7, 0), ["float32", "float16"]),
        ((6, 1), ["float32"]),
        (True, ["float32", "bfloat16"]),
        (False, ["float32"]),
    ],
    indirect=["device"],
)
def test_what_auto_tries_on_which_device(device: torch.device, tried: list[str]) -> None:
    seen: list[str] = []
    chosen, note = precision.choose("auto", device, seen.append)
    assert chosen in tried
    if len(tried) == 1:
        assert not seen
    else:
        assert list(dict.fromkeys(seen)) == tried
        assert all(f"{name} " in note and " ms" in note for name in tried)


@pytest.mark.parametrize("device", [(8, 0)], indirect=True)
@pytest.mark.parametrize("fastest", ["float32", "tf32", "bfloat16"])
def test_auto_takes_the_fastest(device: torch.device, fastest: str) -> None:
    chosen, note = precision.choose(
        "auto", device, lambda name: time.sleep(0.001 if name == fastest else 0.02)
    )
    assert chosen == fastest
    assert note is not None and note.startswith(f"precision: {fastest} (measured")


@pytest.mark.parametrize(
    ("device", "chosen", "said"),
    [
        ((8, 0), "bfloat16", "not measured"),
        ((7, 5), "float32", "--precision float16"),
        ((6, 1), "float32", "no bfloat16"),
        (True, "bfloat16", "not measured"),
        (False, "float32", "no bfloat16"),
    ],
    indirect=["device"],
)
def test_a_loop_of_one_s_own_has_nothing_to_time(
    device: torch.device, chosen: str, said: str
) -> None:
    found, note = precision.choose("auto", device)
    assert found == chosen
    assert note is not None and said in note


@pytest.mark.parametrize("device", [(6, 1), False], indirect=True)
@pytest.mark.parametrize("asked", ["float32", "tf32", "bfloat16", "float16"])
def test_what_was_asked_for_is_not_measured(device: torch.device, asked: str) -> None:
    def never(_: str) -> None:
        raise AssertionError

    assert precision.choose(asked, device, never) == (asked, None)


@pytest.mark.parametrize("name", ["float32", "tf32", "bfloat16", "float16"])
def test_a_trial_leaves_no_trace(switches: None, name: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    data = torch.randn(9, 1, 8, 8), torch.randint(0, 3, (9,))
    inside: list[bool] = []

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inside.append(MATMUL.fp32_precision == "tf32")
        return nn.functional.cross_entropy(outputs.float(), y)

    before, drawn = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    set_before = _switches()
    precision.trial_step(model, loss, data, 8, call_model)(name)
    assert inside == [name == "tf32"]
    assert _switches() == set_before
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_trial_that_fails_puts_the_switches_back(switches: None) -> None:
    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError

    set_before = _switches()
    attempt = precision.trial_step(
        nn.Linear(2, 2), loss, (torch.ones(4, 2), torch.zeros(4)), 4, call_model
    )
    with pytest.raises(ArithmeticError):
        attempt("tf32")
    assert _switches() == set_before


@pytest.mark.parametrize("way", ["nothing", "older", "newer", "high", "convolutions"])
def test_tf32_is_switched_on_and_put_back_as_the_script_had_it(switches: None, way: str) -> None:
    if way == "older":
        MATMUL.allow_tf32 = True
    elif way == "newer":
        MATMUL.fp32_precision = "tf32"
    elif way == "high":
        torch.set_float32_matmul_precision("medium")
    elif way == "convolutions":
        CUDNN.allow_tf32 = False
    new = [MATMUL.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision]
    both = None if way == "newer" else _switches()
    switched = precision.switch_on_tf32()
    assert [MATMUL.fp32_precision, CUDNN.conv.fp32_precision] == ["tf32", "tf32"]
    if way != "newer":  # else the script itself has made the older one unreadable
        assert MATMUL.allow_tf32 and CUDNN.allow_tf32
        assert torch.get_float32_matmul_precision() in ("high", "medium")
    switched.close()
    assert [MATMUL.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision] == new
    assert both is None or _switches() == both
    torch.set_float32_matmul_precision("highest")


def _joined(rank: int) -> str:
    model = nn.Linear(2, 2)
    return phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1)).precision


@pytest.mark.parametrize("workers", [1, 2])
def test_tf32_where_no_worker_has_it_is_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(InputError, match="no worker has one"):
        as_ranks(workers, tmp_path, _joined, RunSettings(precision="tf32"))


def test_tf32_where_one_worker_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switches: None
) -> None:
    able = iter([True, False, False])
    monkeypatch.setattr(precision, "supports_tf32", lambda _: next(able))
    found = as_ranks(3, tmp_path, _joined, RunSettings(precision="tf32"))
    assert found == ["tf32"] * 3
    assert MATMUL.fp32_precision == "tf32"


def test_after_a_training_in_tf32_the_switches_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switches: None
) -> None:
    inside: list[str] = []

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inside.append(MATMUL.fp32_precision)
        return nn.functional.cross_entropy(outputs, y)

    def trained(rank: int) -> None:
        model, (x, y) = nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8, dtype=torch.long))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        phalanx.fit(model, optimizer=optimizer, loss=loss, train=(x, y), epochs=1, batch=4)

    monkeypatch.setattr(precision, "supports_tf32", lambda _: True)
    before = _switches()
    as_ranks(2, tmp_path, trained, RunSettings(precision="tf32"))
    assert set(inside) == {"tf32"}
    assert _switches() == before


@pytest.mark.parametrize("first", ["float32", "tf32", "bfloat16", "float16"])
def test_all_compute_as_the_first_worker_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switches: None, first: str
) -> None:
    def chosen(*_: object) -> tuple[str, None]:
        context = current()
        return [first, "float32", "bfloat16"][int(context.environment[settings.RANK])], None

    monkeypatch.setattr(precision, "choose", chosen)
    monkeypatch.setattr(precision, "supports_tf32", lambda _: True)
    assert as_ranks(3, tmp_path, _joined, RunSettings(precision="auto")) == [first] * 3
