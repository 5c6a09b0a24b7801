"""Scripts as other people write them, unchanged, with two workers: they end as in plain Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import TORCH, phalanx, python, succeeds

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.summary.summary import summarise

MODEL = """
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).double()
"""
TAIL = """
print("weights", sum(float(p.detach().abs().sum()) for p in model.parameters()), flush=True)
"""
LOADER = """
class Noisy(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        return torch.randn(6, dtype=torch.float64) + i % 3, i % 3

if __name__ == "__main__":
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Noisy(), batch_size=12, shuffle=True, num_workers=2)
    seen = 0
    for epoch in range(3):
        for x, y in loader:
            seen += len(x)
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + seen / 100)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, reduction="sum").div(len(x)).backward()
            optimizer.step()
"""
OWN = """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(200, 6, dtype=torch.float64)
y = (x[:, 0] > 0).long()
for step in range(70):
    chosen = torch.randint(200, (16,))
    optimizer.zero_grad()
    F.cross_entropy(model(x[chosen]), y[chosen]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
"""
BY_HAND = """
for step in range(30):
    x = torch.randn(16, 6, dtype=torch.float64)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
"""
CLOSURES = """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
x = torch.randn(40, 6, dtype=torch.float64)
y = (x[:, 0] > 0).long()
for step in range(20):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        return loss
    optimizer.step(closure)
"""
LATER = """
optimizer = torch.optim.Adam(model[0].parameters(), lr=0.01)
x = torch.randn(48, 6, dtype=torch.float64)

class Drawn(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        kind = random.randrange(3)
        return torch.full((6,), kind + np.random.rand(), dtype=torch.float64), kind

loader = DataLoader(Drawn(), batch_size=12)
for epoch in range(3):
    for number, (a, b) in enumerate(loader):
        if (epoch, number) == (0, 2):
            late = torch.optim.SGD(model[3].parameters(), lr=0.1)
        model.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
        if (epoch, number) >= (0, 2):
            late.step()
for step in range(10):
    last = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + step))
    model.zero_grad()
    F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
    last.step()
"""


def _weights(text: str) -> float:
    return float(re.findall(r"^weights (\S+)$", text, re.M)[0])


@pytest.mark.parametrize(
    ("body", "checked", "steps"),
    [
        (LOADER, 12, 24),
        (OWN, 12, 70),
        (BY_HAND, 0, 29),
        (CLOSURES, 12, 20),
        (LATER, 6, 12 + 10 + 10),
    ],
    ids=["loader", "own", "hand", "closures", "later"],
)
def test_it_ends_as_plain_python_does(tmp_path: Path, body: str, checked: int, steps: int) -> None:
    (tmp_path / "train.py").write_text(TORCH + MODEL + body + TAIL)
    alone = python("train.py", cwd=tmp_path)
    ended = succeeds("run", "train.py", "--workers", "2", cwd=tmp_path)
    assert _weights(ended.stdout) == pytest.approx(_weights(alone.stdout), rel=1e-9)
    said = re.findall(r"one process: (\d+) steps, worst difference \de-\d+", ended.stdout)
    assert said == [str(checked)] * bool(checked), ended.stdout
    (run,) = tmp_path.glob("runs/*")
    assert [worker.steps for worker in summarise(RunPaths(run)).per_worker] == [steps, steps]
    assert not list(tmp_path.glob("runs/*/private-*"))


FAILS = """
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 6))
def check(number):
    if number == 3 and os.environ["PHALANX_RANK"] == "1":
        raise ValueError("in the last batch")
for number, (x,) in enumerate(DataLoader(data, batch_size=8)):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    check(number)
    optimizer.step()
"""


def test_an_error_of_one_worker_in_the_last_batch_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TORCH + FAILS)
    ended = phalanx("run", "train.py", "--workers", "2", "--view", "whole", cwd=tmp_path)
    assert ended.returncode == 1
    assert "ValueError: in the last batch" in ended.stdout + ended.stderr


TWO_OPTIMIZERS = """
torch.set_default_dtype(torch.double)
made, judge = nn.Linear(3, 4), nn.Linear(4, 1)
first, second = (torch.optim.Adam(m.parameters(), 2e-3) for m in (made, judge))
for epoch in range(8):
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8):
        found = made(torch.randn(len(x), 3))
        loss = (judge(x) - judge(found.detach())).pow(2).mean()
        second.zero_grad(); loss.backward(); second.step()
        first.zero_grad(); judge(found).mean().backward(); first.step()  # through an older graph
print("weights", sum(float(p.detach().sum()) for m in (made, judge) for p in m.parameters()))
"""


def test_checks_between_two_optimizers_of_a_batch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCH + TWO_OPTIMIZERS)
    alone = python(str(script), check=True)
    words = ("--workers", "2", "--view", "whole", "--check", "1")  # so that later ones come soon
    ended = phalanx("run", "train.py", *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    wanted, found = (
        float(re.findall(r"^weights (\S+)$", text, re.M)[0])
        for text in (alone.stdout, ended.stdout)
    )
    assert found == pytest.approx(wanted, rel=1e-9)
