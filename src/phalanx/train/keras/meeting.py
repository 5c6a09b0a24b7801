"""What workers agree on between two epochs: figures, and what callbacks have decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.adapters.keras.guest import Guest
from phalanx.core.errors import InputError
from phalanx.train.api import gathered_values as gathered
from phalanx.train.loop.stretches import WorkerParts


class Meeting:
    """All workers meet here after an epoch, whatever the strategy."""

    def __init__(self, parts: WorkerParts, guest: Guest) -> None:
        self._parts, self._guest, self._model = parts, guest, guest.model
        self._engine = parts.trained.engine
        self.rank, self.workers = parts.environment.rank, parts.environment.workers

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        if self.workers == 1:
            return [value]
        over = self._parts.lifecycle.over
        return gathered.gather(
            value, lambda mine: gathered.bring_together(self._engine, mine, False, over)
        )

    def from_first(self, value: Any) -> Any:
        """What the first worker gives."""
        return self.gather(value if self.is_first else None)[0]

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Inside, Keras' model has the weights that all workers have come to."""
        engine, guest = self._engine, self._guest
        self.gather(None)  # no step is under way any more
        guest.read_buffers()
        engine.settle()
        engine.model.share_buffers()
        with engine.model.showing(engine.model.take_snapshot()):
            guest.load()
            guest.show()
            shown = [p.detach().cpu().clone() for p in guest.parameters] if self.is_first else []
            yield
            chosen = self._weights_of_first(shown)
        engine.note_weights()  # what was written was a copy
        if chosen is not None:
            self._take_over(chosen)
        guest.load()

    def add_metrics(self) -> None:
        """Metrics that were counted in parts become those of the whole."""
        variables = self._model.metrics_variables
        if self.workers == 1 or not variables:
            return
        mine = [_tensor_of(variable) for variable in variables]
        for variable, *values in zip(variables, *self.gather(mine), strict=True):
            if getattr(variable, "aggregation", "sum") != "sum":
                raise InputError(
                    f"the metric variable {variable.path} cannot be added up over workers",
                    'Create it with aggregation="sum".',
                )
            variable.assign(torch.stack(values).sum(0).numpy())

    def follow_first(self) -> None:
        """What callbacks on the first worker did to the rate and to ``stop_training``."""
        optimizer = self._model.optimizer
        fixed = not callable(optimizer._learning_rate)
        rate = float(optimizer.learning_rate) if fixed else 0.0
        found = self.from_first([rate, bool(self._model.stop_training)])
        self._model.stop_training = bool(found[1])
        if fixed and found[0] != rate:
            optimizer.learning_rate = found[0]

    # -- weights that a callback has set --------------------------------------------------------

    def _weights_of_first(self, shown: list[Tensor]) -> list[Tensor] | None:
        """If callbacks have set other weights than were shown: those, on every worker."""
        now = [_tensor_of(variable) for variable in self._guest.variables] if shown else []
        changed = not all(map(torch.equal, now, shown))
        found: list[Tensor] | None = self.from_first(now if changed else None)
        return found

    def _take_over(self, values: list[Tensor]) -> None:
        """Collective. Training goes on from ``values``; the optimizer keeps what it has learnt."""
        engine = self._engine
        shared = self.from_first(engine.capture().shared)
        by_parameter = dict(zip(map(id, self._guest.parameters), values, strict=True))
        (replica,) = engine.model.replicas
        for i, (layout, own) in enumerate(zip(replica.layouts, replica.parameters, strict=True)):
            for place, parameter in zip(layout.places, own, strict=True):
                place.view(shared[f"o0.parameters.{i}"]).copy_(by_parameter[id(parameter)])
        with self._parts.steps.ours:
            engine.model.restore(shared, None)
        engine.note_weights()


def _tensor_of(variable: Any) -> Tensor:
    from keras import ops

    return torch.from_numpy(np.array(ops.convert_to_numpy(variable.value)))
