"""Functions on one or several torch models and optimizers: checks, moves, states, saving."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from phalanx.core.errors import InputError, MachineError

PAIRS = ":complex128"


class Mirror(nn.Module):
    """Holds the variables of a Keras model as parameters, named as checkpoints name them."""

    frozen: list[nn.Parameter]
    buffer_of: dict[int, Tensor]
    refresh: Callable[[], None]
    """Brings the buffers up to date, before they are saved or shared."""


def as_models(models: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    found = [models] if isinstance(models, nn.Module) else list(models)
    for model in found:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"'{type(model).__name__}' is not a torch model", "Give a torch.nn.Module."
            )
    return found


def as_optimizers(
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    closures: bool = False,
) -> list[torch.optim.Optimizer]:
    """Check and list the optimizers; ``closures``: whether they may need a closure to step."""
    found = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    for optimizer in found:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(
                f"'{type(optimizer).__name__}' is not a torch optimizer",
                "For example: torch.optim.SGD(model.parameters(), lr=0.1)",
            )
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        needed = closure is not None and closure.default is inspect.Parameter.empty
        if needed and not closures:
            raise InputError(
                f"{type(optimizer).__name__} evaluates the loss several times a step (a closure)",
                "Use an optimizer without a closure, such as SGD or Adam.",
            )
    return found


def check_apart(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse a parameter in two optimizers: it has only one place in the workers' shared memory."""
    owners: dict[int, int] = {}
    for i, optimizer in enumerate(optimizers):
        for parameter in parameters_of([optimizer]):
            if owners.setdefault(id(parameter), i) != i:
                raise InputError(
                    f"a parameter is in optimizer {owners[id(parameter)] + 1} and in optimizer "
                    f"{i + 1}",
                    "Give each parameter to one optimizer only.",
                )


def move(models: Sequence[nn.Module], device: torch.device, channels_last: bool) -> None:
    """Move parameters in place, so that optimizers keep them."""
    for model in models:
        model.to(device)
        if channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def move_state(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Move the state that optimizers have already (Adagrad, loaded ones) to their parameters."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.ndim and value.device != parameter.device:
                    state[name] = value.to(parameter.device)


def parameters_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    return [p for o in optimizers for group in o.param_groups for p in group["params"]]


def count_parameters(models: Sequence[nn.Module]) -> int:
    return sum(p.numel() for model in models for p in model.parameters())


def state_of(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return every tensor by name; with several models, the model's number comes before it."""
    state: dict[str, Tensor] = {}
    for i, model in enumerate(models):
        prefix = f"{i}." if len(models) > 1 else ""
        for name, value in model.state_dict().items():
            if isinstance(value, Tensor):
                state[prefix + name] = value.detach()
    return state


def as_pairs(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace complex128, which safetensors cannot hold, by pairs of float64 with a marked name."""
    found = dict(state)
    for name in [name for name, value in state.items() if value.dtype == torch.complex128]:
        found[name + PAIRS] = torch.view_as_real(found.pop(name).resolve_conj())
    return found


def from_pairs(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = dict(state)
    for name in [name for name in state if name.endswith(PAIRS)]:
        found[name.removesuffix(PAIRS)] = torch.view_as_complex(found.pop(name))
    return found


def save_state(state: dict[str, Tensor], path: Path) -> None:
    """Save a plain ``state_dict`` as safetensors, whole or not at all. Tied tensors are written
    once per name: the file can be loaded without knowing which are tied."""
    state = {k: v.cpu().clone().contiguous() for k, v in as_pairs(state).items()}
    temporary = path.with_suffix(".partial")
    try:
        save_file(state, temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise MachineError(
            f"cannot write {path}: {getattr(error, 'strerror', None) or error}",
            "Check free space and permissions, then: phalanx resume",
        ) from error
