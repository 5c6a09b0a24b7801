"""Scripts that train something else when each worker sees its part of a batch: one error each."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = torch.tanh(self.first(x))
        INNER
        return self.second(h)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = seen = 0
mean, bank, stop = 1.0, [], False
SETUP
for epoch in range(20):
    for x, y in loader:
        BATCH
        out = model(x)
        LOSS
        BACKWARD
        step += 1
        seen += len(x)
        AFTER
        time.sleep(0.004)
    if stop:
        break
print("ended", step)
"""


@dataclass(frozen=True)
class Pieces:
    loss: str = "loss = F.cross_entropy(out, y)"
    after: str = "pass"
    batch: str = "pass"
    inner: str = "pass"
    setup: str = "pass"
    backward: str = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()"


def _late(term: str) -> str:
    return f"loss = F.cross_entropy(out, y)\nif step > 30:\n    loss = loss + {term}"


_UNIT = "h = F.normalize(out, dim=1)\n"
RIGHT = {
    "plain": Pieces(),
    "rate by steps": Pieces(after="optimizer.param_groups[0]['lr'] = 0.05 / (1 + step / 20)"),
    "penalty late": Pieces(_late("1e-2 * sum(p.pow(2).sum() for p in model.parameters())")),
    "clipped": Pieces(
        backward="optimizer.zero_grad()\nloss.backward()\n"
        "nn.utils.clip_grad_norm_(model.parameters(), 0.3)\noptimizer.step()"
    ),
    "accumulated": Pieces(
        backward="(loss / 2).backward()\n"
        "if step % 2:\n    optimizer.step()\n    optimizer.zero_grad()"
    ),
    "noise": Pieces(batch="x = x + 0.1 * torch.randn_like(x)"),
    "sharpness": Pieces(  # steps up the gradient, and back again after a second look
        backward="optimizer.zero_grad()\nloss.backward()\n"
        "old = [p.data.clone() for p in model.parameters()]\n"
        "for p in model.parameters():\n    p.data = p.data + 0.05 * p.grad / p.grad.norm()\n"
        "optimizer.zero_grad()\nF.cross_entropy(model(x), y).backward()\n"
        "for p, value in zip(model.parameters(), old):\n    p.data = value\noptimizer.step()"
    ),
}
PLANTED = {
    "hinge late": Pieces(_late("F.relu(1 - out.std(0)).mean()")),
    "rate by samples late": Pieces(
        after="if step > 30:\n    optimizer.param_groups[0]['lr'] = 0.05 / (1 + seen / 100)"
    ),
    "divided by a constant": Pieces("loss = F.cross_entropy(out, y) * (len(x) / 8)"),
    "hard examples late": Pieces(
        "loss = F.cross_entropy(out, y, reduction='none')\n"
        "loss = loss.mean() if step < 30 else loss.topk(max(1, len(x) // 4))[0].mean()"
    ),
    "dice late": Pieces(
        _late("1 - (2 * (out.softmax(1) * F.one_hot(y, 3)).sum() / (len(x) + 1 + y.sum()))")
    ),
    "normalised by the batch": Pieces(batch="x = (x - x.mean(0)) / (x.std(0) + 0.1)"),
    "memory bank": Pieces(
        "loss = F.cross_entropy(out, y)\nif bank:\n"
        "    loss = loss + 0.1 * (out @ torch.cat(bank).T).logsumexp(1).mean()\n"
        "bank.append(out.detach())\ndel bank[:-3]"
    ),
    "average of losses": Pieces(
        "loss = F.cross_entropy(out, y)\nmean = 0.9 * mean + 0.1 * float(loss)\nloss = loss / mean"
    ),
    "clipped rarely": Pieces(
        setup="for p in model.parameters():\n"
        "    p.register_hook(lambda g: g * (0.25 / g.norm()) if g.norm() > 0.25 else g)"
    ),
    "accumulated by length": Pieces(
        backward="(loss * len(x) / 16).backward()\n"
        "if step % 2:\n    optimizer.step()\n    optimizer.zero_grad()"
    ),
    "parameter of a batch": Pieces(
        "loss = F.cross_entropy(out + late, y)",
        setup="late = torch.zeros(3)",
        batch="if step == 4:\n    late = nn.Parameter(0.1 * x.mean(0)[:3])\n"
        "    optimizer.add_param_group({'params': [late]})",
    ),
    "state cleared": Pieces(after="if step % 10 == 0:\n    optimizer.state.clear()"),
    "stops by samples": Pieces(after="if seen >= 80:\n    stop = True\n    break"),
    "statistics by hand": Pieces(inner="h = (h - h.mean(0)) / (h.std(0) + 0.1)"),
    "temperature of the batch": Pieces("loss = F.cross_entropy(out / out.detach().std(), y)"),
    "contrastive": Pieces(
        f"{_UNIT}loss = F.cross_entropy(h @ h.roll(1, 1).T, torch.arange(len(out)))"
    ),
    "padded to the longest": Pieces(
        batch="x = F.pad(x[:, : 3 + int(y.max())], (0, 3 - int(y.max()))) - y.max()"
    ),
    "sum of rows": Pieces("loss = sum((o - t).square().mean() for o, t in zip(out, y))"),
    "mixed inside the batch": Pieces(batch="x = 0.8 * x + 0.2 * x.roll(1, 0)"),
    "smoothed by frequency": Pieces(
        "t = 0.9 * F.one_hot(y, 3) + 0.1 * torch.bincount(y, minlength=3) / len(y)\n"
        "loss = F.cross_entropy(out, t)"
    ),
    "decay by length": Pieces(
        after="with torch.no_grad():\n    for p in model.parameters():\n"
        "        p.mul_(1 - 1e-3 * len(x))"
    ),
    "average of lengths": Pieces(
        after="mean = 0.9 * mean + 0.1 * len(x)\noptimizer.param_groups[0]['lr'] = 0.01 * mean"
    ),
}


def text_of(pieces: Pieces) -> str:
    text = HEAD
    for name in ("setup", "inner", "batch", "loss", "backward", "after"):
        line = next(one for one in text.splitlines() if one.strip() == name.upper())
        margin = line[: -len(name)]
        written = "\n".join(margin + one for one in getattr(pieces, name).splitlines())
        text = text.replace(line, written, 1)
    return text
