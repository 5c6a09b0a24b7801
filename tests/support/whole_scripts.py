"""Ordinary scripts that a part of a batch would lead elsewhere: put together from a number.

Each one leaves ``RESULT``: weights, losses, rates and steps of a training in float64.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from textwrap import indent

from whole_pieces import AFTER, BATCHES, EPOCHS, LOSSES, MODELS, OPTIMIZERS, STEPS

HEAD = """\
import collections
import contextlib
import copy
import dataclasses
import itertools
import random
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

warnings.simplefilter("ignore")
torch.manual_seed(SEED)
random.seed(SEED)
np.random.seed(SEED)
COUNT, BATCH, EPOCHS = N_COUNT, N_BATCH, N_EPOCHS
x_all = torch.randn(COUNT, 6, dtype=torch.float64)
y_all = (x_all[:, :3] + 0.3 * x_all[:, 3:]).argmax(1)
state = {"step": 0, "seen": 0, "mean": 1.0, "best": 1e9, "bad": 0, "stop": False}
losses, rates = [], []
"""
TAIL = """
RESULT = {
    "weights": {k: v.detach().clone() for k, v in model.state_dict().items()},
    "losses": losses,
    "rates": rates,
    "steps": state["step"],
}
"""


@dataclass(frozen=True)
class WholeScript:
    """Names of the pieces of a script."""

    seed: int
    model: str
    batches: str
    loss: str
    step: str
    optimizer: str
    after: tuple[str, ...]
    epoch: tuple[str, ...]
    epochs: int
    count: int
    batch: int

    @property
    def tolerance(self) -> float:
        return {"bfloat16": 0.2, "complex": 1e-4}.get(self.model, 1e-10)


def script_of(seed: int) -> WholeScript:
    draw = random.Random(seed)
    model = draw.choice(list(MODELS))
    batches = draw.choice(["plain", "plain", "plain", *BATCHES])
    losses = [k for k in LOSSES if not MODELS[model].own_loss or k == "plain"]
    loss = "own" if MODELS[model].own_loss else draw.choice(losses)
    steps = [k for k in STEPS if MODELS[model].twice or k not in ("penalty", "hessian")]
    step = draw.choice(["plain", "plain", *steps])
    short = MODELS[model].random  # random numbers are those of one process for a while only
    if short:
        step, batches = "plain", "plain"
    optimizer = draw.choice(list(OPTIMIZERS))
    after = tuple(draw.sample(list(AFTER), draw.randint(0, 2)))
    if "replaced" in after and not MODELS[model].plain_head:
        after = tuple(a for a in after if a != "replaced")
    epoch = tuple(draw.sample(list(EPOCHS), draw.randint(0, 2)))
    batch = draw.choice((4, 5, 8, 9))
    count = batch * 3 if short else batch * 4 + draw.choice((0, 0, 1, 2, 3))
    return WholeScript(seed, model, batches, loss, step, optimizer, after, epoch, 2, count, batch)


def text_of(script: WholeScript) -> str:
    model = MODELS[script.model]
    loss = model.loss if model.own_loss else model.loss + LOSSES[script.loss]
    body = "".join(AFTER[a].inside for a in script.after)
    lines = [
        HEAD,
        model.text,
        BATCHES[script.batches].setup,
        OPTIMIZERS[script.optimizer],
        STEPS_SETUP.get(script.step, ""),
        *(AFTER[a].setup for a in script.after),
        *(EPOCHS[e].setup for e in script.epoch),
        f"\ndef loss_of(x, y):\n{indent(loss, '    ')}    return loss\n\n",
        "for epoch in range(EPOCHS):\n    model.train()\n",
        *(indent(EPOCHS[e].before, "    ") for e in script.epoch),
        indent(BATCHES[script.batches].loop, "    "),
        indent(STEPS[script.step] + COUNTED + body, "        "),
        *(indent(EPOCHS[e].after, "    ") for e in script.epoch),
        "    if state['stop']:\n        break\n",
        TAIL,
    ]
    text = "".join(line if line.endswith("\n") or not line else line + "\n" for line in lines)
    for name, value in {
        "SEED": script.seed % 1000,
        "N_COUNT": script.count,
        "N_BATCH": script.batch,
        "N_EPOCHS": script.epochs,
    }.items():
        text = text.replace(name, str(value))
    return text


COUNTED = """\
state["step"] += 1
state["seen"] += len(x)
losses.append(float(loss))
rates.append(optimizer.param_groups[0]["lr"])
"""
STEPS_SETUP = {
    "hook clamps": (
        "for p in model.parameters():\n    p.register_hook(lambda g: g.clamp(-0.05, 0.05))\n"
    ),
    "hook rarely": (
        "for p in model.parameters():\n"
        "    p.register_hook(lambda g: g * (0.5 / g.norm()) if g.norm() > 0.5 else g)\n"
    ),
}
