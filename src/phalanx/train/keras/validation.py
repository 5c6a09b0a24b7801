"""What each worker evaluates of the validation data."""

from __future__ import annotations

from typing import Any

import numpy as np


def unpacked(data: Any) -> dict[str, Any]:
    from keras.src.trainers.data_adapters import data_adapter_utils

    x, y, weights = data_adapter_utils.unpack_x_y_sample_weight(data)
    return {"x": x, "y": y, "sample_weight": weights}


def part_of(data: Any, rank: int, workers: int) -> dict[str, Any] | None:
    """This worker's, where the data can be cut."""
    from keras import tree
    from keras.src.trainers.data_adapters import array_data_adapter

    given = unpacked(data)
    if workers == 1 or not array_data_adapter.can_convert_arrays(tuple(given.values())):
        return None
    leaves = [leaf for leaf in tree.flatten(given) if leaf is not None]
    samples = leaves[0].shape[0] if hasattr(leaves[0], "shape") else len(leaves[0])
    if samples < workers or not all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return None
    rows = slice(rank * samples // workers, (rank + 1) * samples // workers)
    cut: dict[str, Any] = tree.map_structure(
        lambda leaf: None if leaf is None else leaf[rows], given
    )
    return cut
