"""A resumed script that is adopted goes on with its schedulers and averages, each with its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import TORCH, phalanx, succeeds

SCRIPT = """
x = torch.randn(32, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.disable()
# The collector lists young objects first: which are young differs from run to run.
averages, schedulers = [], []
for decay, size in ((0.9, 1), (0.1, 2)):
    averages.append(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)))
    schedulers.append(StepLR(optimizer, size, 1 - decay / 10))
    if os.environ.get("COLLECT") and size == 1:
        gc.collect()
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        for average in averages:
            average.update_parameters(model)
    for scheduler in schedulers:
        scheduler.step()
kept = {"averages": [average.state_dict() for average in averages], "model": model.state_dict(),
        "schedulers": [scheduler.state_dict() for scheduler in schedulers]}
torch.save(kept, "kept.pt")
"""


@pytest.mark.parametrize("again", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_two_of_a_kind_are_not_mixed_up(tmp_path: Path, again: str) -> None:
    (tmp_path / "train.py").write_text(TORCH + SCRIPT)
    words = ("--workers", "2", "--checkpoint-every", "1", "--name", "first")
    succeeds("run", "train.py", *words, cwd=tmp_path, COLLECT="" if again else "1")
    wanted = torch.load(tmp_path / "kept.pt")
    succeeds("resume", "first", "--checkpoint", "1", cwd=tmp_path, COLLECT=again)
    found = torch.load(tmp_path / "kept.pt")
    assert found["schedulers"] == wanted["schedulers"]
    for mine, other in zip(found["averages"], wanted["averages"], strict=True):
        for name, value in other.items():
            assert torch.equal(mine[name], value), name
    assert torch.equal(found["model"]["weight"], wanted["model"]["weight"])


LEFT_EARLY = """
def bar(batches):
    for batch in batches:
        yield batch

x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler, average = StepLR(optimizer, 1, 0.7), AveragedModel(model)
own = torch.Generator().manual_seed(5)
loader = DataLoader(data, batch_size=8, shuffle=True, generator=own)
for epoch in range(4):
    model.train()
    for i, (a, b) in enumerate(bar(loader)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        if epoch == 2 and i == 1 and "fails" in sys.argv:
            raise ValueError("on purpose")
        if i == 2 + epoch % 2:
            break
    scheduler.step()
    average.update_parameters(model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
    model.eval()
    with torch.no_grad():
        model(x)
if "fails" not in sys.argv:
    kept = {"average": average.state_dict(), "scheduler": scheduler.state_dict(),
            "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(kept, "kept.pt")
"""


def test_a_variable_of_a_skipped_loop_is_explained(tmp_path: Path) -> None:
    text = SCRIPT.replace("    for scheduler in", "    print(a.sum())\n    for scheduler in")
    (tmp_path / "train.py").write_text(TORCH + text)
    words = ("--workers", "1", "--checkpoint-every", "1", "--name", "first")
    ended = succeeds("run", "train.py", *words, cwd=tmp_path)
    ended = phalanx("resume", "first", "--checkpoint", "1", cwd=tmp_path)
    assert ended.returncode == 1
    assert "error: worker 0 failed: NameError: name 'a' is not defined (log: " in ended.stderr
    assert "its loop over the data has no batch there" in ended.stderr
    assert "hint: Give the variable a value before the loop" in ended.stderr


STOPPED = """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)

def epoch(number):
    batches = iter(loader)  # is deleted at the end: so ends the pass
    for i in range(len(loader)):
        (a,) = next(batches)
        optimizer.zero_grad()
        model(a).mean().backward()
        if i == 3 and number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        optimizer.step()
    print("trained epoch", number)

for number in range(4):
    epoch(number)
"""


def test_a_stop_at_the_end_of_a_kept_iterator_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TORCH + STOPPED)
    ended = phalanx("run", "train.py", "--workers", "1", "--checkpoint-every", "1", cwd=tmp_path)
    said = ended.stdout + ended.stderr
    assert "trained epoch 1" in said
    assert "trained epoch 2" not in said
    assert "Exception ignored" not in said
    assert "Traceback" not in said


def _assert_same(found: object, wanted: object) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            _assert_same(found[name], value)
    else:
        assert found == wanted


def _run(folder: Path, *words: str) -> dict[str, object]:
    ended = phalanx(*words, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return torch.load(folder / "kept.pt")


def _checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("runs/*-first-*/checkpoints/0*"))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_epoch_that_was_left_early_has_a_checkpoint(tmp_path: Path, workers: str) -> None:
    (tmp_path / "train.py").write_text(TORCH + LEFT_EARLY)
    equal = ("--strategy", "allreduce:shares=equal")  # dropout depends on who draws for which rows
    words = (*equal, "--workers", workers, "--checkpoint-every", "1,keep=9", "--name", "first")
    wanted = _run(tmp_path, "run", "train.py", *words)
    assert _checkpoints(tmp_path) == ["000001", "000002", "000003", "000004"]
    _assert_same(_run(tmp_path, "resume", "first", "--checkpoint", "2"), wanted)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_epoch_in_which_the_script_failed_has_none(tmp_path: Path, workers: str) -> None:
    """The checkpoint before it is there, although the script fails while the disk is slow."""
    slow = "plain = os.fsync\nos.fsync = lambda file: (time.sleep(0.3), plain(file))[1]\n"
    (tmp_path / "train.py").write_text(TORCH + slow + LEFT_EARLY)
    words = ("--workers", workers, "--checkpoint-every", "1", "--name", "first")
    ended = phalanx("run", "train.py", *words, "--", "fails", cwd=tmp_path)
    assert ended.returncode == 1
    assert "ValueError: on purpose" in ended.stderr
    assert _checkpoints(tmp_path) == ["000001", "000002"]


SLOW_DISK = """
import threading
released, plain = threading.Event(), os.fsync

def wait(file):
    assert released.wait(60), "the script waits for its last checkpoint"
    plain(file)

def train():
    x = torch.randn(32, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1):
        for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()

os.fsync = wait
train()
released.set()
train()
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_script_goes_on_while_its_last_checkpoint_is_written(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "train.py").write_text(TORCH + SLOW_DISK)
    words = ("--workers", workers, "--view", "parts", "--checkpoint-every", "1,keep=9")
    ended = succeeds("run", "train.py", *words, "--name", "first", cwd=tmp_path)
    assert "was not written" not in ended.stdout + ended.stderr
    assert _checkpoints(tmp_path) == ["000001", "000002"]
