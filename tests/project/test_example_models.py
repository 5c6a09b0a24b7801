"""The models of the examples are those that their studies describe."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_mnist import make_mnist
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("digits", (1, 8, 8), 17_258),
        ("own_loop", (1, 8, 8), 9_610),
        ("mnist_mlp", (1, 28, 28), 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10),
        ("fashion_mlp", (1, 28, 28), 784 * 128 + 128 + 128 * 10 + 10),
        ("kmnist_mlp", (1, 28, 28), 784 * 128 + 128 + 128 * 10 + 10),
        ("mnist_cnn", (1, 28, 28), 347_146),
        ("mnist_convnet", (1, 28, 28), 1_199_882),
        ("cifar_resnet", (3, 32, 32), 855_770),
        ("fashion_densenet", (1, 28, 28), 175_690),
    ],
)
def test_shape_and_size(name: str, shape: tuple[int, ...], count: int) -> None:
    model = example(name)["make_model"]()
    assert parameters(model) == count
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_small_resnet_has_the_published_size() -> None:
    assert parameters(example("cifar_resnet")["make_model"]()) == pytest.approx(850_000, rel=0.01)


@pytest.mark.parametrize(("depth", "count"), [(20, 570_602), (56, 1_663_338)])
def test_resnet_v2_of_any_depth(depth: int, count: int) -> None:
    model = example("cifar_resnet_v2")["make_model"](depth)
    assert parameters(model) == count
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    beside = 3  # the shortcuts that change the width are not counted in the depth
    assert len(convolutions) - beside + 1 == depth
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("depth", [2, 55, 0])
def test_resnet_v2_refuses_other_depths(depth: int) -> None:
    with pytest.raises(SystemExit, match="9n"):
        example("cifar_resnet_v2")["make_model"](depth)


def test_densenet_40_has_forty_layers() -> None:
    model = example("fashion_densenet")["make_model"]()
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 40


def test_the_generator_draws_digits() -> None:
    gan = example("gan")
    drawn = gan["make_generator"]()(torch.randn(64, gan["NOISE"]))
    assert drawn.shape == (64, 1, 8, 8)
    assert gan["make_discriminator"]()(drawn).shape == (64, 1)
    assert len(gan["as_picture"](drawn.detach())) == len(b"P5 64 64 255\n") + 64 * 64


SCRIPTS = sorted(set(EXAMPLES.glob("*.py")) - {EXAMPLES / "published.py"})


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_every_example_says_how_to_run_it(path: Path) -> None:
    # Read, not run: some need TensorFlow.
    module = ast.parse(path.read_bytes())
    # A peer's script is run beside the example that it is a peer of.
    run_as = path.stem.partition(".")[0]
    assert f"examples/{run_as}.py" in (ast.get_docstring(module) or "")
    assert "main" in [node.name for node in module.body if isinstance(node, ast.FunctionDef)]


def test_published_files_are_read_as_they_are(tmp_path: Path) -> None:
    published = example("published")
    make_mnist(tmp_path / "mnist", zipped=True, images=(5, 3))
    (x, y), (test_x, _), checksums = published["mnist"](tmp_path / "mnist")
    assert x.shape == (5, 1, 28, 28) and test_x.shape == (3, 1, 28, 28)
    assert y.tolist() == [0, 1, 2, 3, 4] and 0.0 <= float(x.min()) <= float(x.max()) <= 1.0
    assert len(checksums) == 4
    for number, name in enumerate(published["CIFAR"]):
        (tmp_path / name).write_bytes(bytes([number]) + bytes([51]) * 1024 + bytes(2048))
    (x, y), (_, test_y), _ = published["cifar_10"](tmp_path)
    assert y.tolist() == [0, 1, 2, 3, 4] and test_y.tolist() == [5]
    assert x[0, :, 0, 0].tolist() == pytest.approx([0.2, 0.0, 0.0])


def test_without_files_torchvision_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def downloaded(folder: Path, train: bool, download: bool) -> SimpleNamespace:
        assert download and folder == tmp_path
        return SimpleNamespace(data=torch.full((4, 28, 28), 255), targets=[7] * 4)

    datasets = SimpleNamespace(KMNIST=downloaded)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=datasets))
    (x, y), _, _ = example("published")["kmnist"](tmp_path)
    assert x.shape == (4, 1, 28, 28) and float(x.mean()) == 1.0 and y.tolist() == [7] * 4
