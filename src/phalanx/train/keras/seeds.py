"""Random numbers of a Keras model: layers that draw differ between workers, all else is common."""

from __future__ import annotations

from typing import Any

import numpy as np

from phalanx.train.start.random_streams import Streams

_APART = 0x9E3779B1


class KerasSeeds(Streams):
    """Layers have seeds of their own in Keras, and on torch may draw from its common stream, which
    each worker has its own of inside an epoch. Data are made from what all have in common."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def own(self, rank: int) -> None:
        from keras import ops

        super().own(rank)
        for variable in self._model.non_trainable_variables:
            if rank and "seed_generator_state" in variable.path:
                state = np.array(ops.convert_to_numpy(variable.value))
                state[0] = (int(state[0]) + rank * _APART) % 2**31
                variable.assign(state)
