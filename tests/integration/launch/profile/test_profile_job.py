"""``profile_job`` as the planner calls it: real steps of real scripts, and nothing is left."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from phalanx.core.errors import InputError, ScriptError
from phalanx.core.settings import RunSettings
from phalanx.launch.profile.profile_job import plain_settings, profile_job
from phalanx.plan.job import JobProfile
from phalanx.pool.here import this_machine

pytestmark = pytest.mark.runs
EXAMPLES = Path(__file__).parents[4] / "examples"
PLAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

open("log.csv", "w").write("began")
x, y = torch.randn(700, 64), torch.randint(0, 3, (700,))
loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
test = DataLoader(TensorDataset(x, y), batch_size=50)
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss = nn.CrossEntropyLoss()
for epoch in range(3):
    model.train()
    for a, b in loader:
        optimizer.zero_grad()
        loss(model(a), b).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum(int((model(a).argmax(1) == b).sum()) for a, b in test)
    torch.save(model.state_dict(), "model.pt")
open("end.txt", "w").write("the end")
"""
ACCUMULATES = """
import torch
from torch import nn
import phalanx

model = nn.Linear(8, 2)
x, y = torch.randn(640, 8), torch.randint(0, 2, (640,))
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
mean = sum(float(a.mean()) for a, _ in run.batches((x, y), batch=64))
run.finish()
phalanx.fit(model, optimizer=torch.optim.SGD(model.parameters(), lr=1e6),
            loss=nn.CrossEntropyLoss(), train=(x, y), epochs=1, batch=16, accumulate=4)
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder, a cache and a place for temporary files that are this test's own."""
    for name in ("work", "cache", "scratch"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("PHALANX_RUNS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)


def _profile(script: Path, seconds: float = 8.0, **options: bool) -> JobProfile:
    pool = this_machine()
    return profile_job(script, [], pool, pool.machines, seconds=seconds, **options)


def _script(text: str) -> Path:
    path = Path("train.py")
    path.write_text(text, encoding="utf-8")
    return path


def _nothing_is_left(tmp_path: Path, files: set[str]) -> None:
    assert {file.name for file in Path().iterdir()} == files
    assert not list((tmp_path / "scratch").glob("phalanx-*"))


def _is_sane(profile: JobProfile) -> None:
    (costs,) = profile.costs.values()
    work = costs.work
    assert work.fixed >= 0
    assert work.each >= 0  # 0 where other programs took the time of the small batches
    assert work.seconds(profile.batch) > 0
    assert (work.smallest, work.largest) == (profile.batch // 8, profile.batch)
    assert not work.extrapolated
    assert 0 < work.error <= 0.5
    assert costs.update > 0
    assert costs.start > 0
    assert costs.memory is not None
    assert costs.memory > 10_000_000
    assert abs(sum(share for share, _ in profile.ready) - 1.0) < 1e-6


def test_a_script_that_calls_fit(tmp_path: Path) -> None:
    found = _profile(EXAMPLES / "digits.py")
    _is_sane(found)
    assert (found.batch, found.samples, found.epochs, found.elementwise) == (64, 1500, 8, True)
    parameters = 16 * 9 + 16 + 256 * 64 + 64 + 64 * 10 + 10
    assert found.gradient_bytes == 4 * parameters
    assert found.state_bytes == 8 * parameters  # with momentum
    assert found.costs["here"].evaluate > 0
    _nothing_is_left(tmp_path, set())


def test_a_loop_of_its_own_and_the_second_time_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _profile(EXAMPLES / "own_loop.py")
    _is_sane(found)
    assert (found.batch, found.samples, found.epochs) == (64, 1500, 10)
    _nothing_is_left(tmp_path, set())
    (kept,) = (tmp_path / "cache" / "phalanx" / "profiles").iterdir()
    with monkeypatch.context() as patch:
        patch.delattr("phalanx.launch.profile.profile_job.execute")  # nothing is started
        assert _profile(EXAMPLES / "own_loop.py") == found
        assert _profile(EXAMPLES / "own_loop.py", quick=True) == found
    kept.write_bytes(b"{")
    again = _profile(EXAMPLES / "own_loop.py")
    assert (again.key, again.batch) == (found.key, found.batch)
    assert again != found


def test_an_adopted_script_whose_files_are_not_touched(tmp_path: Path) -> None:
    script = _script(PLAIN)
    Path("model.pt").write_text("precious")
    found = _profile(script)
    _is_sane(found)
    assert (found.batch, found.samples, found.epochs) == (40, 700, 3)
    assert found.costs["here"].evaluate > 0
    assert Path("model.pt").read_text() == "precious"
    _nothing_is_left(tmp_path, {"train.py", "model.pt"})


def test_batches_of_one_step_and_rates_beyond_reason(tmp_path: Path) -> None:
    found = _profile(_script(ACCUMULATES))
    assert (found.batch, found.epochs) == (64, 1)
    assert found.costs["here"].work.smallest == 8
    _nothing_is_left(tmp_path, {"train.py"})


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nprint(torch.ones(1))\n",
        "import torch, phalanx\nmodel = torch.nn.Linear(1, 1)\n"
        "phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1))\n",
    ],
    ids=["adopted", "joins"],
)
def test_a_script_without_a_step(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as found:
        _profile(_script(text))
    assert found.value.cause == "the script ended without a step"
    assert found.value.remedy
    _nothing_is_left(tmp_path, {"train.py"})


def test_a_script_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ScriptError) as found:
        _profile(_script("import torch\nraise ValueError('not today')\n"))
    assert found.value.cause == "worker 0 failed: ValueError: not today"
    _nothing_is_left(tmp_path, {"train.py"})


HEAD = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = torch.randn(320, 8), torch.randint(0, 2, (320,))
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model, n = nn.Linear(8, 2), 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(loader))
"""
LOOPS = {
    "adopted": """
for epoch in range(1):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        n += 1
        INSIDE
    AFTER
""",
    "joins": """
import phalanx
run = phalanx.join(model, optimizer)
for epoch in run.epochs(1):
    for a, b in run.batches(loader):
        run.backward(nn.functional.cross_entropy(model(a), b))
        run.step()
        n += 1
        INSIDE
    AFTER
""",
}


def _said(
    text: str, kind: str = "", inside: str = "pass", after: str = "pass", seconds: float = 1.0
) -> list[str]:
    """What is said while ``text``, or a loop, is measured."""
    loop = LOOPS[kind].replace("INSIDE", inside).replace("AFTER", after) if kind else ""
    pool, said = this_machine(), list[str]()
    script = _script(text + loop)
    found = profile_job(script, [], pool, pool.machines, seconds=seconds, say=said.append)
    assert found.batch == 32
    return said


@pytest.mark.parametrize("where", ["inside", "after"])
def test_a_script_that_fails_after_steps_leaves_no_profile(where: str, tmp_path: Path) -> None:
    fails = {where: "if n >= 3: raise RuntimeError('third step')"}
    with pytest.raises(ScriptError, match=r"^worker 0 failed: RuntimeError: third step$"):
        _said(HEAD, "joins", **fails, seconds=10.0)  # for one epoch, also on a busy machine
    _nothing_is_left(tmp_path, {"train.py"})
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.parametrize(
    ("kind", "inside", "error"),
    [
        *((kind, "scheduler.step()", "") for kind in LOOPS),
        *((kind, "list(range(11))[n]", "IndexError") for kind in LOOPS),
        ("adopted", "break", ""),
        ("adopted", "__import__('time').sleep(2.5)", ""),  # longer than the profile
    ],
)
def test_what_only_the_repeated_pass_provokes_is_said_and_forgiven(
    kind: str, inside: str, error: str
) -> None:
    """As a schedule that ends with the script."""
    seconds = 8.0 if error else 1.0  # enough for a second pass, also on a busy machine
    said = _said(HEAD, kind, inside=inside, seconds=seconds)
    errors = [line for line in said if "Error" in line]
    assert bool(errors) == bool(error)
    assert not error or any("only a profile repeats" in e and error in e for e in errors)


def test_a_script_that_trips_over_having_been_ended() -> None:
    loop = LOOPS["joins"].replace("\n", "\n    ").replace("epochs(1)", "epochs(2)")
    loop = loop.replace("INSIDE", "pass").replace("AFTER", "pass")
    _said(f"{HEAD}\ntry:\n    {loop}\nfinally:\n    1 / (n < 0)\n")


def test_batches_of_no_loader_without_an_end() -> None:
    loop = LOOPS["adopted"].replace("in loader", "in iter(lambda: (x[:32], y[:32]), 0)")
    with pytest.raises(InputError, match="a batch that Phalanx cannot share out"):
        _said(HEAD + loop.replace("INSIDE", "pass").replace("AFTER", "pass"))


@pytest.mark.parametrize("code", [1, 2])
def test_a_script_that_ends_by_itself_has_the_last_word(code: int) -> None:
    pool, said = this_machine(), list[str]()
    lines = f"for k in range(9): print('why', k, file=sys.stderr)\nsys.exit({code})\n"
    with pytest.raises(ScriptError) as found:
        profile_job(_script(HEAD + lines), [], pool, pool.machines, seconds=1.0, say=said.append)
    assert found.value.cause == f"worker 0 exited with code {code}"
    assert ("after --" in found.value.remedy) is (code == 2)
    assert said[-5:] == [f"why {k}" for k in range(4, 9)]


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np

keras.utils.set_random_seed(0)
x, y = np.random.rand(640, 16).astype("float32"), np.random.randint(0, 3, 640)
model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(3)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss)
DATA
model.fit(FIT, epochs=5, verbose=0)
open("end.txt", "w").write("the end")
"""
STREAM = """
class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 20
    def __getitem__(self, n):
        return x[n * 32:][:32], y[n * 32:][:32]
"""


@pytest.mark.parametrize(
    ("data", "fit"),
    [("", "x, y, batch_size=32, validation_data=(x[:100], y[:100])"), (STREAM, "Rows()")],
    ids=["arrays", "batches"],
)
@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_fit_of_keras(data: str, fit: str, tmp_path: Path) -> None:
    pool, said = this_machine(), list[str]()
    script = _script(KERAS.replace("DATA", data).replace("FIT", fit))
    found = profile_job(script, [], pool, pool.machines, seconds=8.0, say=said.append)
    _is_sane(found)
    assert (found.batch, found.samples, found.epochs, found.elementwise) == (32, 640, 5, True)
    assert found.gradient_bytes == 4 * (16 * 32 + 32 + 32 * 3 + 3)
    assert not [line for line in said if "only a profile repeats" in line]
    _nothing_is_left(tmp_path, {"train.py"})


def test_machines_of_one_host_are_measured_one_after_the_other(tmp_path: Path) -> None:
    """They would share its cores, and be measured slower than they are."""
    times = tmp_path / "times"
    body = LOOPS["joins"].replace("INSIDE", "pass").replace("AFTER", "pass")
    notes = (
        "import atexit, os\n"
        f"os.system('echo begin >> {times}')\n"
        f"atexit.register(os.system, 'echo end >> {times}')\n"
    )
    (here,) = this_machine().machines
    machines = [here.model_copy(update={"name": f"m{n}", "cores": n}) for n in (1, 2)]
    profile_job(_script(notes + HEAD + body), [], this_machine(), machines, seconds=1.0)
    assert times.read_text().split() == ["begin", "end", "begin", "end"]


def test_how_often_checkpoints_are_saved_makes_no_other_profile() -> None:
    plain = plain_settings(RunSettings())
    assert plain_settings(RunSettings(checkpoint_gap=60.0, checkpoint_epochs=1)) == plain
