"""Pieces of ordinary training scripts, by name. ``@name`` is what the script keeps."""

from __future__ import annotations

MODELS = '''
import copy
import itertools
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler, DataLoader, Dataset, RandomSampler, SubsetRandomSampler, TensorDataset,
    WeightedRandomSampler,
)

torch.manual_seed(SEED)
RESULT = {"seen": [], "losses": [], "figures": [], "norms": [], "epochs": 0}
CLASSES = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.extra = nn.Linear(6, 7), nn.Linear(7, 3), nn.Linear(6, 3)
        self.drop, self.with_extra = nn.Dropout(DROPOUT), True

    def forward(self, x):
        out = self.second(self.drop(torch.tanh(self.first(x))))
        return out + self.extra(x) if self.with_extra else out


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x):
        return self.layers(x)


def make(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :1] * 2 - x[:, 1:2].sin(), torch.arange(count))


@dataclass
class Record:
    x: torch.Tensor
    y: torch.Tensor
    ids: torch.Tensor


class Named(Dataset):
    def __init__(self, plain):
        self.plain = plain

    def __len__(self):
        return len(self.plain)

    def __getitem__(self, number):
        x, y, ids = self.plain[number]
        return {"x": x, "y": y, "ids": ids}


class Chunks:
    """Random batches of one size, beginning somewhere in the data."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count // self.size

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        return iter([order[k * self.size : (k + 1) * self.size] for k in range(len(self))])


def together(samples):
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def as_record(samples):
    return Record(*(torch.stack(column) for column in zip(*samples)))


def classes(y):
    return (y[:, 0] > 0.5).long() + (y[:, 0] > -0.5).long()


def out_of(y):
    return torch.cat([y, y * 2, -y], dim=1)


def kept(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def parts(batch):
    if isinstance(batch, dict):
        return batch["x"], batch["y"]
    return (batch.x, batch.y) if isinstance(batch, Record) else (batch[0], batch[1])
'''

DATA = {
    "tensors": "data, collate = make(SAMPLES, 1), None",
    "list": "data, collate = [make(SAMPLES, 1)[k] for k in range(SAMPLES)], None",
    "dicts": "data, collate = Named(make(SAMPLES, 1)), None",
    "collated": "data, collate = Named(make(SAMPLES, 1)), together",
    "records": "data, collate = make(SAMPLES, 1), as_record",
    "subset": "data, collate = torch.utils.data.random_split(make(SAMPLES, 1), [SAMPLES - 3, 3])"
    "[0], None",
}
UNPACK = {
    "tensors": "x, y, ids = batch",
    "list": "x, y, ids = batch",
    "subset": "x, y, ids = batch",
    "dicts": "x, y, ids = batch['x'], batch['y'], batch['ids']",
    "collated": "x, y, ids = batch['x'], batch['y'], batch['ids']",
    "records": "x, y, ids = batch.x, batch.y, batch.ids",
}
_PLAIN = "@loader = DataLoader(data, batch_size=BATCH, drop_last=DROP, collate_fn=collate, {})"
LOADERS = {
    "shuffled": _PLAIN.format("shuffle=True"),
    "in order": _PLAIN.format("shuffle=False"),
    "subset": _PLAIN.format("sampler=SubsetRandomSampler(range(2, len(data)))"),
    "weighted": "weights = torch.linspace(1, 3, len(data))\n"
    + _PLAIN.format("sampler=WeightedRandomSampler(weights, len(data) - 2)"),
    "replaced": _PLAIN.format("sampler=RandomSampler(data, replacement=True, num_samples=27)"),
    "seeded": _PLAIN.format("shuffle=True, generator=torch.Generator().manual_seed(3)"),
    "batches": "sampler = BatchSampler(RandomSampler(data), BATCH, DROP)\n"
    "@loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)",
    "own batches": "sampler = Chunks(len(data), BATCH)\n"
    "@loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)",
}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(GIVEN, lr=0.05)",
    "momentum": "torch.optim.SGD(GIVEN, lr=0.03, momentum=0.9, nesterov=True)",
    "adam": "torch.optim.Adam(GIVEN, lr=0.01)",
    "adamw": "torch.optim.AdamW(GIVEN, lr=0.01, weight_decay=0.1)",
    "rmsprop": "torch.optim.RMSprop(GIVEN, lr=0.005)",
    # The gradients of "mean of rows" may cancel, but for rounding, which a smaller eps makes large.
    "adagrad": "torch.optim.Adagrad(GIVEN, lr=0.05, eps=1e-6)",
}
LOSSES = {
    "mse": "nn.functional.mse_loss(out[:, :1], y)",
    "mean by hand": "((out[:, :1] - y) ** 2).sum() / len(x)",
    "mean of rows": "(out - out_of(y)).abs().sum(dim=1).mean()",
    "penalty": "nn.functional.mse_loss(out[:, :1], y)"
    " + 0.01 * sum(p.pow(2).sum() for p in @model.parameters())",
    "sum": "((out[:, :1] - y) ** 2).sum()",
    "sum by a constant": "nn.functional.mse_loss(out[:, :1], y, reduction='sum') / BATCH",
    "cross": "nn.functional.cross_entropy(out, classes(y))",
    "smooth": "nn.functional.cross_entropy(out, classes(y), label_smoothing=0.1)",
    "class weights": "nn.functional.cross_entropy(out, classes(y), weight=CLASSES)",
    "sample weights": "((out[:, :1] - y) ** 2 * (1 + y.abs())).mean()",
    "weighted mean": "((out[:, :1] - y) ** 2 * y.abs()).sum() / y.abs().sum()",
    "selected": "((out[:, :1] - y) ** 2)[y > -1.5].mean()",
    "root": "nn.functional.mse_loss(out[:, :1], y).sqrt()",
}
ZEROS = {
    "top": "TOP@optimizer.zero_grad()",
    "top model": "TOP@model.zero_grad()",
    "bottom": "@optimizer.zero_grad()",
    "kept": "@optimizer.zero_grad(set_to_none=False)",
    "by hand": "for p in @model.parameters():\n    p.grad = None",
    "filled": "for p in @model.parameters():\n    if p.grad is not None:\n        p.grad.zero_()",
}
_TOTAL = (
    "total = sum(float(p.grad.pow(2).sum()) for p in @model.parameters()"
    " if p.grad is not None) ** 0.5\n"
)
CLIPS = {
    "norm": "nn.utils.clip_grad_norm_(@model.parameters(), 0.5)",
    "value": "nn.utils.clip_grad_value_(@model.parameters(), 0.1)",
    "own": "for p in @model.parameters():\n    if p.grad is not None:\n"
    "        p.grad.clamp_(-0.2, 0.2)",
    "scaled": f"{_TOTAL}for p in @model.parameters():\n    if p.grad is not None:\n"
    "        p.grad = p.grad / (1 + total)",
}
JOINED_CLIPS = CLIPS | {"look": f"{_TOTAL}RESULT['norms'].append(total)", "in the step": ""}
SCHEDULES = {
    "step": "@schedule = torch.optim.lr_scheduler.StepLR(@optimizer, 1, gamma=0.5)",
    "lambda": "@schedule = torch.optim.lr_scheduler.LambdaLR(@optimizer, lambda e: 1 / (1 + e))",
    "cosine": "@schedule = torch.optim.lr_scheduler.CosineAnnealingLR(@optimizer, 7)",
    "onecycle": "@schedule = torch.optim.lr_scheduler.OneCycleLR("
    "@optimizer, max_lr=0.05, total_steps=EPOCHS * len(@loader) + EPOCHS,"
    " cycle_momentum=CYCLES)",
    "plateau": "@schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(@optimizer, patience=0,"
    " threshold=0.3, factor=0.5)",
    "by hand": "",
}


def _evaluation(head: str, *, mode: bool = True, inside: str = "") -> str:
    """``inside`` the loop, around each batch."""
    loop = ["x, y = parts(batch)", "total += float(((model(x)[:, :1] - y) ** 2).sum())"]
    pad = "        "
    lines = [pad + inside] if inside else []
    lines += [f"{pad}{'    ' if inside else ''}{line}" for line in [*loop, "count += len(x)"]]
    before = "    model.eval()\n" if mode else ""
    return (
        f"{head}def evaluate(model, loader):\n{before}    total, count = 0.0, 0\n"
        "    for batch in loader:\n" + "\n".join(lines) + "\n    return total / count\n"
    )


JOINED_EVALUATION = (
    "@run.evaluate(lambda out, y: ((out[:, :1] - y) ** 2).mean(),"
    " TensorDataset(*make(13, 99).tensors[:2]))"
)
EVALUATIONS = {
    "decorator": _evaluation("@torch.no_grad()\n"),
    "inference": _evaluation("@torch.inference_mode()\n"),
    "eval": _evaluation(""),
    "still training": _evaluation("@torch.no_grad()\n", mode=False),
    "inside": _evaluation("", inside="with torch.no_grad():"),
}
