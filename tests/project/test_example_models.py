"""The models of the examples are those that their studies describe."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
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


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_every_example_says_how_to_run_it(path: Path) -> None:
    # Read, not run: some need TensorFlow.
    module = ast.parse(path.read_bytes())
    # A peer's script is run beside the example that it is a peer of.
    run_as = path.stem.partition(".")[0]
    assert f"examples/{run_as}.py" in (ast.get_docstring(module) or "")
    assert "main" in [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
