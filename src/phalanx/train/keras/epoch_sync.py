"""Lets workers agree between two epochs: on figures, and on what callbacks have decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from phalanx.adapters.keras.keras_model import KerasModel, copy_of
from phalanx.adapters.keras.optimizers import write_state
from phalanx.core.errors import InputError
from phalanx.train.figures import gathered_values as gathered
from phalanx.train.loop.segments import WorkerParts


class EpochSync:
    """The meeting of all workers after an epoch, under any strategy."""

    def __init__(self, parts: WorkerParts, mirror: KerasModel) -> None:
        self._parts, self._mirror, self._model = parts, mirror, mirror.model
        self._engine = parts.trained.engine
        self.rank, self.workers = parts.environment.rank, parts.environment.workers
        self.is_first = self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        if self.workers == 1:
            return [value]
        over = self._parts.lifecycle.over
        return gathered.gather(
            value, lambda mine: gathered.bring_together(self._engine, mine, False, over)
        )

    def from_first(self, value: Any, *, as_numpy: bool = False) -> Any:
        """Return the first worker's value; tensors travel as those of torch."""
        from keras import tree

        found = self.gather(value if self.is_first else None)[0]
        if not as_numpy:
            return found
        return tree.map_structure(lambda v: v.numpy() if isinstance(v, Tensor) else v, found)

    @contextmanager
    def in_common(self, rule: torch.optim.Optimizer | None = None) -> Iterator[None]:
        """Lend Keras' model the current weights of all workers; they may be changed inside.
        ``rule``: copy the state of this optimizer to Keras' own, for callbacks that save."""
        engine, mirror = self._engine, self._mirror
        engine.come_to_rest()
        mirror.read_buffers()
        engine.model.share_buffers()
        with engine.model.showing(engine.model.take_snapshot()):
            mirror.load()
            mirror.show()
            if rule is not None and self.is_first:
                engine.optimizers.write(0)
                write_state(rule, mirror)
            shown = [copy_of(v) for v in mirror.all_variables] if self.is_first else []
            yield
            chosen = self._weights_of_first(shown)
        engine.note_weights()  # only a copy of the weights was changed
        if chosen is not None:
            trained = len(mirror.variables)
            self._take_over(chosen[:trained])
            mirror.take_states(chosen[trained:])
        mirror.load()

    def add_metrics(self) -> None:
        """Add up the metrics of all workers."""
        variables = self._model.metrics_variables
        if self.workers == 1 or not variables:
            return
        mine = [copy_of(variable) for variable in variables]
        for variable, *values in zip(variables, *self.gather(mine), strict=True):
            if getattr(variable, "aggregation", "sum") != "sum":
                raise InputError(
                    f"the metric variable {variable.path} cannot be added up over workers",
                    'Create it with aggregation="sum".',
                )
            variable.assign(torch.stack(values).sum(0).numpy())

    def check_metrics(self) -> None:
        """Check metrics after a reset: one that does not begin with 0 cannot be summed."""
        for variable in self._model.metrics_variables if self.workers > 1 else ():
            if bool(copy_of(variable).any()):
                raise InputError(
                    f"the metric variable {variable.path} does not start at 0, so it cannot be "
                    "added up over workers",
                    "Let the metric keep sums and counts; or train with one worker.",
                )

    def mean_logs(self, logs: dict[str, Any]) -> dict[str, float]:
        """Average over workers the logs that the script's own ``train_step`` returned last."""
        mine = {name: float(value) for name, value in logs.items()}
        found = self.gather(mine)
        return {name: sum(each[name] for each in found) / len(found) for name in mine}

    def follow_first(self) -> None:
        """Take over the rate and ``stop_training`` that callbacks on the first worker have set."""
        optimizer = self._model.optimizer
        fixed = not callable(optimizer._learning_rate)
        rate = float(optimizer.learning_rate) if fixed else 0.0
        found = self.from_first([rate, bool(self._model.stop_training)])
        self._model.stop_training = bool(found[1])
        if fixed and found[0] != rate:
            optimizer.learning_rate = found[0]

    # -- weights that a callback has set --------------------------------------------------------

    def _weights_of_first(self, shown: list[Tensor]) -> list[Tensor] | None:
        """Return on every worker the weights that callbacks have changed; ``None`` if none."""
        now = [copy_of(variable) for variable in self._mirror.all_variables] if shown else []
        changed = not all(map(torch.equal, now, shown))
        found: list[Tensor] | None = self.from_first(now if changed else None)
        return found

    def _take_over(self, values: list[Tensor]) -> None:
        """Continue training from ``values``; the optimizer keeps what it has learnt. Collective."""
        engine = self._engine
        shared = self.from_first(engine.capture().shared)
        by_parameter = dict(zip(map(id, self._mirror.parameters), values, strict=True))
        (replica,) = engine.model.replicas
        for i, (layout, own) in enumerate(zip(replica.layouts, replica.parameters, strict=True)):
            for place, parameter in zip(layout.places, own, strict=True):
                place.view(shared[f"o0.parameters.{i}"]).copy_(by_parameter[id(parameter)])
        with self._parts.steps.ours:
            engine.model.restore(shared, None)
        engine.note_weights()


class KeptRate:
    """The learning rate that callbacks have set, in a form that is saved with the run."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        rate = self._optimizer._learning_rate
        return {} if callable(rate) else {"rate": float(rate)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "rate" in state:
            self._optimizer.learning_rate = state["rate"]
