"""A script that evaluates in the middle of a pass over its loader, perhaps on the same one."""

from __future__ import annotations

from pathlib import Path

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

torch.manual_seed(3)
x = torch.randn(22, 4, dtype=torch.float64)
data = TensorDataset(x, x[:, :1] * 2)
own = torch.Generator().manual_seed(5)
loader = DataLoader(data, 4, drop_last=True, LOADER)
model = nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
RESULT = {"figures": []}
for epoch in range(3):
    for step, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        if step == 1:
            with torch.no_grad():
                for c, d in EVALUATED:
                    RESULT["figures"].append(float(nn.functional.mse_loss(model(c), d)))
        LEAVE
RESULT["weights"] = model.state_dict()
"""
OWN = "shuffle=True, generator=own"
EVALUATED = {
    "itself": "loader",
    "other": "DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(9))",
    "same generator": "DataLoader(data, 5, shuffle=True, generator=own)",
}


def written(folder: Path, loader: str, evaluated: str, leave: str) -> Path:
    path, text = folder / "train.py", SCRIPT.replace("EVALUATED", EVALUATED[evaluated])
    path.write_text(text.replace("LOADER", loader).replace("LEAVE", leave), encoding="utf-8")
    return path
