"""What torch loads on its first backward pass and first step belongs to preparing, not to training.

A second or more on a slow machine, and not the same under every strategy: a comparison of short
trainings would be one of imports.
"""

from __future__ import annotations

import torch


def warm_up(*, steps: bool) -> None:
    """``steps``: the user's own optimizer will step, which loads more than our shards of it."""
    weight = torch.ones(1, requires_grad=True)
    (weight * 1.0).backward(torch.ones(1))
    if steps:
        torch.optim.SGD([weight], lr=0.0).step()
