"""Follows what a script does between two steps: it calls ``backward``, it reads ``.grad``.

What it reads is the gradient of the whole batch.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.errors import InputError
from phalanx.sync.state.gradients import stop_watching, watch_reads
from phalanx.train.engine.engine import Engine, Script
from phalanx.train.engine.script_optimizers import Inside
from phalanx.train.step.gradient_weight import GradientWeight


class GradientReads:
    """Makes the workers agree on an optimizer's gradients when the script reads one of them."""

    def __init__(
        self, script: Script, engine: Engine, weight: GradientWeight, ours: Inside
    ) -> None:
        self._engine = engine
        self._models, self._optimizers = script.models, script.optimizers
        self._weight, self._ours = weight, ours
        self._owners: dict[int, int] = {}
        self._hooked: dict[int, tuple[int, RemovableHandle]] = {}
        """The optimizer and the hook of each parameter that is watched for backward passes."""
        self.watch()

    def watch(self) -> None:
        """Watch the parameters; called again when the optimizers' parameters change."""
        if self._engine.workers == 1 and self._weight.loss_scale.scaler is None:
            return
        self._owners = {
            id(p): i for i, o in enumerate(self._optimizers) for p in parameters_of([o])
        }
        written = None if self._weight.loss_scale.scaler is None else self._written
        watch_reads(parameters_of(self._optimizers), self._read, written)
        for model in self._models:
            watch_reads(model.parameters(), self._read, written)
        for index in {index for index, _ in self._hooked.values()}:
            self._listen(index)

    def _read(self, parameter: Tensor) -> None:
        if self._ours:
            return
        index = self._owners.get(id(parameter))
        if self._engine.parties == 1:
            self._read_own(parameter)
            return
        if index in self._weight.agreed:
            return
        with self._ours:
            if self._engine.optimizers.follow_parameters():
                self.watch()
                index = self._owners.get(id(parameter))
            if index is None:
                raise InputError(
                    "the script reads the gradient of a parameter that no optimizer trains, "
                    "which differs from worker to worker",
                    "Freeze it (requires_grad_(False)), or read and clip only what is trained.",
                )
            self._engine.exchange.share_gradients(index, *self._weight.of_step(index))
        self._weight.agreed.add(index)
        self._weight.loss_scale.look()
        self._listen(index)

    def _read_own(self, parameter: Tensor) -> None:
        """Read a gradient of a worker that steps by itself: only its scale is taken off."""
        if self._weight.loss_scale.scaler is None:
            return
        trained = ((i, p) for i, o in enumerate(self._optimizers) for p in parameters_of([o]))
        index = self._owners.get(id(parameter))
        if index is None:  # it may have been added meanwhile
            index = next((i for i, p in trained if p is parameter), None)
        if index is None:
            raise InputError(
                "the script reads the gradient of a parameter that no optimizer trains, which "
                "--precision float16 has multiplied by its scale",
                "Freeze it (requires_grad_(False)), or use --precision bfloat16.",
            )
        if self._weight.loss_scale.unscale():
            self._listen(index)
        self._weight.loss_scale.look()

    def _written(self, parameter: Tensor) -> None:
        """Unscale the gradients when the script writes one, because it writes unscaled values."""
        index = self._owners.get(id(parameter))
        if not self._ours and index is not None and self._weight.loss_scale.unscale():
            self._listen(index)

    def _listen(self, index: int) -> None:
        """Watch for backward passes from now on: they add gradients of this worker only."""
        for parameter in parameters_of([self._optimizers[index]]):
            if id(parameter) not in self._hooked and parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(
                    lambda _: self._weight.touched(index)
                )
                self._hooked[id(parameter)] = index, hook

    def end(self) -> None:
        for _, hook in self._hooked.values():
            hook.remove()
        for model in self._models:
            stop_watching(model.parameters())
        stop_watching(parameters_of(self._optimizers))
