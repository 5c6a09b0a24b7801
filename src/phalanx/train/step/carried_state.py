"""Finds a state that the script carries from one batch to the next, such as that of an LSTM.

The state belongs to the samples that it was computed from: a worker has to read the same columns of
each global batch, or it would continue the text of another worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from phalanx.core.context import be_advised_by
from phalanx.core.errors import InputError
from phalanx.data.structure import tensors_in
from phalanx.train.step.stopwatch import Stopwatch

REMEDY = "Use run.batches(…, fixed=True): every worker then keeps its columns of each global batch."


class CarriedState:
    """Watches the batches of one worker among several."""

    def __init__(self, models: Sequence[nn.Module], stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self.fixed = False
        """Whether the worker keeps its columns of each global batch in the present pass."""
        self._made: dict[nn.Module, tuple[int, list[Tensor]]] = {}
        for module in {m for model in models for m in model.modules()}:
            if isinstance(module, nn.RNNBase):
                module.register_forward_hook(self._look, with_kwargs=True)
        be_advised_by(self._advise)

    def _look(self, module: nn.Module, args: Any, named: dict[str, Any], outputs: Any) -> None:
        if not module.training:
            return
        given = {t.data_ptr() for t in tensors_in([args[1:], named.get("hx")])}
        now = self._stopwatch.batches
        batch, made = self._made.get(module, (now, []))
        carried = any(tensor.data_ptr() in given for tensor in made)
        if carried and batch < now and not self.fixed:
            raise InputError(
                "the script carries a hidden state from batch to batch, but the samples that a "
                "worker reads next may belong to other sequences",
                REMEDY,
            )
        # Keep the tensors, so that their memory is not reused; detach them, to free their graph.
        self._made[module] = now, [t.detach() for t in tensors_in(outputs[1])]

    def _advise(self, error: BaseException) -> str:
        before, now = self._stopwatch.batch_before, self._stopwatch.batch_samples
        if not isinstance(error, RuntimeError) or "size" not in str(error) or self.fixed:
            return ""
        if before in (0, now):
            return ""
        return (
            f"\nThis worker's batch has {now} samples, the one before had {before}. If the script "
            f"carries a state from batch to batch: {REMEDY}\n"
        )
