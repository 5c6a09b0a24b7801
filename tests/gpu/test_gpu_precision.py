"""``--precision`` on a GPU: TF32 where it is asked for, and float16 as plain torch trains in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import last_json, phalanx
from ranks import as_ranks
from torch import Tensor, nn

from phalanx import fit
from phalanx.core import settings
from phalanx.core.context import current
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order
from phalanx.observe.summary.summary import summarise
from phalanx.train.worker import precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SCRIPT = """
import torch, phalanx
from torch import nn

train, test = phalanx.data.load("digits")
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                      nn.Linear(288, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
phalanx.fit(model, optimizer=optimizer, loss=nn.functional.cross_entropy, epochs=10,
            train=train, test=test, batch=120, clip=5.0)
"""
SAMPLES, BATCH, EPOCHS = 600, 100, 4
torch.manual_seed(5)
X = torch.randn(SAMPLES, 1, 12, 12)
Y = (X.mean(dim=(1, 2, 3)) > 0).long()


@pytest.fixture
def exact() -> Iterator[None]:
    """Products without TF32, also where another test has switched it on."""
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


def _run(folder: Path, *options: str) -> dict[str, Any]:
    script, pool = folder / "train.py", folder / "pool.yaml"
    script.write_text(SCRIPT)
    pool.write_text("machines:\n  here: {host: here, gpus: 1}\n")
    ended = phalanx("run", str(script), "--pool", str(pool), *options, "--json", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return last_json(ended.stdout)


@pytest.mark.parametrize("name", ["tf32", "float16"])
@pytest.mark.parametrize(
    "words",
    [("--workers", "1"), *(("--workers", "2", "--strategy", s) for s in ("allreduce", "async"))],
)
def test_a_run_learns(tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    summary = _run(tmp_path, "--precision", name, *words)
    assert summary["precision"] == name
    assert any(note.startswith(f"precision: {name}") for note in summary["notes"])
    assert summary["test_accuracy"] >= 0.9
    assert summary["train_loss"] < 1.0


def test_auto_times_all_that_the_gpu_has(tmp_path: Path) -> None:
    names = precision.candidates(torch.device("cuda:0"))
    summary = _run(tmp_path, "--precision", "auto", "--workers", "1")
    note = next(n for n in summary["notes"] if n.startswith("precision:"))
    assert all(f"{name} " in note for name in names), note
    assert summary["precision"] in names


@pytest.mark.skipif(
    not torch.cuda.is_available() or not precision.supports_tf32(torch.device("cuda:0")),
    reason="needs a GPU that has TF32",
)
def test_products_are_rounded_while_tf32_is_on(exact: None) -> None:
    one = torch.randn(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    wanted = one.double() @ one.double()

    def error() -> float:
        return float((one @ one - wanted).abs().max() / wanted.abs().max())

    before = error()
    switched = precision.switch_on_tf32()
    inside = error()
    torch.compile(lambda x: x @ x)(one)  # it reads the switches of both interfaces
    assert torch.get_float32_matmul_precision() == "high"
    switched.close()
    assert before < 1e-6 < 1e-4 < inside < 1e-2
    assert error() == before
    assert torch.get_float32_matmul_precision() == "highest"


def _model() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    """So small that its gradients in float16 would be zero."""
    return nn.functional.cross_entropy(outputs, y) * 1e-6


def _plain() -> dict[str, Tensor]:
    (model, optimizer), scaler = _model(), torch.amp.GradScaler("cuda")
    optimizer.param_groups[0]["lr"] *= 1e6
    model.to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
    for epoch in range(EPOCHS):
        for some in order(SAMPLES, 1, epoch, True).split(BATCH):
            x = X[some].cuda().contiguous(memory_format=torch.channels_last)
            with torch.autocast("cuda", dtype=torch.float16):
                error = _loss(model(x), Y[some].cuda())
            scaler.scale(error).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-7)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def test_float16_ends_where_plain_torch_ends(tmp_path: Path) -> None:
    def work(rank: int) -> dict[str, Tensor]:
        context = current()
        assert context is not None
        context.environment[settings.DEVICE] = "cuda:0"  # type: ignore[index]
        model, optimizer = _model()
        optimizer.param_groups[0]["lr"] *= 1e6
        fit(
            model, optimizer=optimizer, loss=_loss, train=(X, Y), epochs=EPOCHS, batch=BATCH,
            clip=1e-7,
        )  # fmt: skip
        return {name: value.cpu() for name, value in model.state_dict().items()}

    chosen = RunSettings(strategy="single", seed=1, precision="float16")
    found = as_ranks(1, tmp_path, work, chosen)[0]
    wanted, begun = _plain(), _model()[0].state_dict()
    for name, value in wanted.items():
        moved = (value.float() - begun[name].float()).norm()
        assert (found[name].float() - value.float()).norm() <= 0.02 * moved, name
    summary = summarise(RunPaths(tmp_path))
    assert summary.train_loss is not None and summary.train_loss < 1e-6
