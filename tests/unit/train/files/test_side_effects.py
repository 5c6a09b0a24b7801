"""A worker other than the first reads back what it has written, and changes nothing real."""

# Scripts use all of these.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH105, PTH106, PTH107, PTH110, PTH112, PTH113, PTH123
# ruff: noqa: PTH202, PTH207, PTH208, PTH211, SIM115

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from commands import python
from torch.utils.data import DataLoader, Dataset

from phalanx.core.context import WorkerContext, enter, leave
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.train.files import side_effects
from phalanx.train.files.script_files import PrivateFiles


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This thread is a worker of rank 1 while a test goes on, in a folder of the script's."""
    real = tmp_path / "project"
    real.mkdir()
    (real / "before.txt").write_text("before\n")
    monkeypatch.chdir(real)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker = WorkerContext({}, None)
    enter(worker)
    side_effects.keep_files_apart(1, RunPaths(tmp_path))
    yield real
    for call in reversed(worker.at_end):
        call()
    leave()
    assert list(tmp_path.glob("private-*")) == []


def really(folder: Path) -> dict[str, str]:
    """What is there in truth: asked in a thread that is no worker."""
    found: dict[str, str] = {}

    def look() -> None:
        for path in sorted(folder.rglob("*")):
            text = path.read_text(errors="replace") if path.is_file() else "/"
            found[str(path.relative_to(folder))] = text

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


UNCHANGED = {"before.txt": "before\n"}


def as_the_first_worker(folder: Path, name: str, text: str) -> None:
    def write() -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def test_what_is_written_is_read_back(folder: Path) -> None:
    with open("a.json", "w") as file:
        json.dump({"a": 1}, file)
    with open("log.txt", "a") as file:
        file.write("one\n")
    with open("log.txt", mode="a") as file:
        file.write("two\n")
    Path("b.txt").write_text("b")
    (folder / "c.bin").write_bytes(b"c")
    Path("d.txt").touch()
    assert json.load(open("a.json")) == {"a": 1}
    assert Path("log.txt").read_text() == "one\ntwo\n"
    assert Path("b.txt").exists() and os.path.isfile(folder / "c.bin")
    assert os.path.getsize("c.bin") == 1 and os.path.getsize("d.txt") == 0
    assert Path("before.txt").read_text() == "before\n"
    assert not Path("nothing.txt").exists()
    with pytest.raises(FileNotFoundError):
        open("nothing.txt")
    assert really(folder) == UNCHANGED


@pytest.mark.parametrize(
    ("mode", "result"), [("a", "before\nX"), ("r+", "Xefore\n"), ("w+", "X"), ("x", "X")]
)
def test_changes_begin_with_the_original(folder: Path, mode: str, result: str) -> None:
    with open("before.txt", mode) as file:
        file.write("X")
    assert Path("before.txt").read_text() == result
    assert really(folder) == UNCHANGED


def test_models_and_arrays(folder: Path) -> None:
    from safetensors.torch import load_file, load_model, save_file, save_model

    model = torch.nn.Linear(2, 1)
    torch.save(model.state_dict(), "best.pt")
    torch.save({"epoch": 3}, f=Path("last.pt"))
    with open("open.pt", "wb") as file:
        torch.save(torch.ones(2), file)
    save_file({"x": torch.ones(2)}, "x.safetensors")
    save_model(model, "m.safetensors")
    torch.jit.script(model).save("script.pt")
    torch.jit.save(torch.jit.script(model), "script2.pt")
    np.save("x.npy", np.ones(3))
    np.savez("z", a=np.ones(2))
    np.savetxt("x.txt", np.ones(3))
    assert torch.equal(torch.load("best.pt")["weight"], model.weight)
    assert torch.load(Path("last.pt")) == {"epoch": 3}
    assert torch.load(folder / "open.pt").tolist() == [1, 1]
    assert load_file("x.safetensors")["x"].tolist() == [1, 1]
    load_model(model, "m.safetensors")
    with safetensors.safe_open("x.safetensors", framework="pt") as opened:
        assert list(opened.keys()) == ["x"]
    assert torch.jit.load("script.pt").weight.shape == torch.jit.load("script2.pt").weight.shape
    assert np.load("x.npy").sum() == 3 and np.load("z.npz")["a"].sum() == 2
    assert np.loadtxt("x.txt").sum() == 3
    assert really(folder) == UNCHANGED


@pytest.mark.parametrize("first", [False, True])
def test_folders(folder: Path, first: bool) -> None:
    """Whether or not the first worker has made them meanwhile."""
    if first:
        as_the_first_worker(folder, "out/log.txt", "of the first\n")
    before = really(folder)
    os.mkdir("out")
    with pytest.raises(FileExistsError):
        os.mkdir("out")
    os.makedirs("out/a/b")
    os.makedirs("out/a/b", exist_ok=True)
    Path("out/c/d").mkdir(parents=True)
    Path("out/c/d").mkdir(parents=True, exist_ok=True)
    for epoch in range(3):
        torch.save(epoch, f"out/a/{epoch}.pt")
        os.utime(f"out/a/{epoch}.pt", (epoch, epoch))  # the clock of a file system is coarse
    assert os.path.isdir("out") and Path("out/c/d").is_dir()
    assert sorted(os.listdir("out/a")) == ["0.pt", "1.pt", "2.pt", "b"]
    assert sorted(glob.glob("out/a/*.pt")) == [f"out/a/{epoch}.pt" for epoch in range(3)]
    assert sorted(path.name for path in Path("out").rglob("*.pt")) == ["0.pt", "1.pt", "2.pt"]
    assert torch.load(max(glob.glob("out/**/*.pt"), key=os.path.getmtime)) == 2
    assert [sorted(files) for _, _, files in os.walk("out/a")] == [["0.pt", "1.pt", "2.pt"], []]
    assert really(folder) == before


def test_removing_renaming_copying(folder: Path) -> None:
    torch.save(1, "new.tmp")
    os.replace("new.tmp", "model.pt")
    shutil.copy("model.pt", "best.pt")
    shutil.copyfile("before.txt", "copied.txt")
    os.makedirs("kept")
    shutil.copy2("model.pt", "kept")
    shutil.move("best.pt", "kept/best.pt")
    os.symlink("model.pt", "latest.pt")
    os.chmod("before.txt", 0o600)
    assert torch.load("latest.pt") == torch.load("kept/best.pt") == torch.load("kept/model.pt") == 1
    assert not os.path.exists("new.tmp") and not os.path.exists("best.pt")
    os.remove("model.pt")
    assert not os.path.exists("model.pt")
    os.rename("before.txt", "after.txt")
    assert Path("after.txt").read_text() == "before\n" and not Path("before.txt").exists()
    assert "before.txt" not in os.listdir()
    Path("copied.txt").unlink()
    shutil.rmtree("kept")
    assert not os.path.exists("kept/best.pt")
    assert really(folder) == UNCHANGED


def _missing() -> list[str]:
    """What fails because the file is not there."""
    calls: dict[str, Callable[[], Any]] = {
        "remove": lambda: os.remove("x.txt"),
        "unlink": lambda: Path("x.txt").unlink(),
        "rmdir": lambda: os.rmdir("x.txt"),
        "rmtree": lambda: shutil.rmtree("x.txt"),
        "rename": lambda: os.rename("x.txt", "y.txt"),
        "move": lambda: shutil.move("x.txt", "y.txt"),
        "chmod": lambda: os.chmod("x.txt", 0o600),
    }
    found = []
    for name, call in calls.items():
        with suppress(FileNotFoundError):
            call()
            continue
        found.append(name)
    return found


EVERY_CALL = ["remove", "unlink", "rmdir", "rmtree", "rename", "move", "chmod"]


def test_what_was_never_there_cannot_be_removed(folder: Path) -> None:
    assert _missing() == EVERY_CALL
    Path("x.txt").unlink(missing_ok=True)
    shutil.rmtree("x.txt", ignore_errors=True)
    Path("x.txt").write_text("x")
    os.remove("x.txt")
    assert _missing() == EVERY_CALL  # removed by this worker itself
    os.remove("before.txt")
    with pytest.raises(FileNotFoundError):
        os.remove("before.txt")
    assert really(folder) == UNCHANGED


@pytest.mark.parametrize("way", ["removes", "moves", "makes"])
def test_what_the_first_worker_had_can_be_removed(folder: Path, tmp_path: Path, way: str) -> None:
    """Alone the script would find it, or would have made it as the first worker has."""

    def first() -> None:
        enter(WorkerContext({}, None))
        side_effects.keep_files_apart(0, RunPaths(tmp_path))
        if way == "removes":
            os.remove("before.txt")
        elif way == "moves":
            os.rename("before.txt", "moved.txt")
        else:
            Path("best.pt").write_text("best")
            os.remove("best.pt")

    _really_make(tmp_path / "logs")
    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    name = "best.pt" if way == "makes" else "before.txt"
    assert name not in really(folder)
    os.remove(name)
    with pytest.raises(FileNotFoundError):
        os.remove(name)


def test_on_another_machine_files_may_have_been_removed_unheard(tmp_path: Path) -> None:
    files = PrivateFiles(str(tmp_path / "own"), RunPaths(tmp_path), one_machine=False)
    assert files.nowhere("x.txt") is None
    files.removed("x.txt")
    assert str(files.nowhere("x.txt")).startswith(str(tmp_path / "own"))


def test_hard_links(folder: Path) -> None:
    Path("new.txt").write_text("new")
    os.link("new.txt", "linked.txt")
    os.link("before.txt", dst="second.txt")
    with open("second.txt", "a") as file:
        file.write("X")
    Path("third.txt").hardlink_to("linked.txt")
    assert Path("linked.txt").read_text() == Path("third.txt").read_text() == "new"
    assert Path("second.txt").read_text() == "before\nX"
    with pytest.raises(FileExistsError):
        os.link("before.txt", "second.txt")
    with pytest.raises(FileNotFoundError):
        os.link("was never there", "fourth.txt")
    assert really(folder) == UNCHANGED


class _Globber:
    """As pathlib's own of Python 3.13."""

    lstat = staticmethod(getattr(os.lstat, "__wrapped__", os.lstat))
    scandir = staticmethod(getattr(os.scandir, "__wrapped__", os.scandir))


def test_functions_that_were_kept_from_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glob, "_StringGlobber", _Globber, raising=False)
    side_effects._put_hooks(glob)
    Path("new.txt").write_text("new")
    os.remove("before.txt")
    with _Globber().scandir(".") as found:
        assert [entry.path for entry in found] == ["./new.txt"]
    assert _Globber().lstat("new.txt").st_size == 3
    assert sorted(path.name for path in Path().glob("*.txt")) == ["new.txt"]
    assert really(folder) == UNCHANGED


def test_a_real_folder_that_is_made_anew(folder: Path) -> None:
    as_the_first_worker(folder, "out/old.txt", "old")
    before = really(folder)
    shutil.rmtree("out")
    assert not os.path.exists("out") and not os.path.exists("out/old.txt")
    os.makedirs("out")
    Path("out/new.txt").write_text("new")
    assert os.listdir("out") == ["new.txt"]
    assert really(folder) == before


def test_temporary_files_and_what_is_no_file(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "x").write_text("x")
        assert really(Path(place)) == {"x": "x"}  # other processes may be given it
    assert not os.path.exists(place)
    os.mkdir("out")
    with tempfile.NamedTemporaryFile("w", dir="out", delete=False) as file:
        file.write("whole")
    os.replace(file.name, "out/final.txt")
    assert Path("out/final.txt").read_text() == "whole"
    with tempfile.TemporaryFile() as unnamed, tempfile.SpooledTemporaryFile(1) as small:
        assert unnamed.write(b"x") == small.write(b"x") == 1
    number = os.open("low.txt", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(number, b"low")
    os.close(number)
    assert Path("low.txt").read_text() == "low"
    with open(os.devnull, "w") as nothing:
        nothing.write("x")
    read, write = os.pipe()
    with os.fdopen(write, "w") as pipe:
        pipe.write("x")
    assert os.read(read, 2) == b"x"
    os.close(read)
    assert really(folder) == UNCHANGED


def test_going_into_a_folder(folder: Path) -> None:
    os.mkdir("out")
    os.chdir("out")
    Path("x.txt").write_text("x")
    assert Path("x.txt").read_text() == "x"
    assert Path("../before.txt").read_text() == "before\n"
    os.chdir(folder)
    assert Path("out/x.txt").read_text() == "x"
    assert really(folder) == UNCHANGED


class _Reads(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        Path("cache").write_text("of a process that reads data")
        return int(np.load("numbers.npy")[index])


def test_processes_that_read_data(folder: Path) -> None:
    np.save("numbers.npy", np.arange(4))
    found = [int(x) for batch in DataLoader(_Reads(), num_workers=1) for x in batch]
    assert found == [0, 1, 2, 3]
    assert really(folder) == UNCHANGED


LIBRARY = """
import os
class FileWriter:
    def __init__(self, logdir):
        os.makedirs(logdir, exist_ok=True)
        with open(os.path.join(logdir, "events"), "w") as file:
            file.write("x")
def save(name):
    with open(name + ".tmp", "w") as file:
        file.write("x")
    os.replace(name + ".tmp", name)
"""


def test_libraries(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own files are real; those in the script's folders are not; a writer's never."""
    place = tmp_path / "site-packages"
    thread = threading.Thread(target=_make_library, args=(place,))
    thread.start()
    thread.join()
    monkeypatch.syspath_prepend(str(place))
    from tensorboardX import writer  # type: ignore[import-not-found]

    writer.FileWriter("runs")
    writer.FileWriter(logdir="runs/second")
    os.mkdir("out")
    writer.save("out/mine")
    assert Path("out/mine").read_text() == "x" and os.listdir("out") == ["mine"]
    assert really(folder) == UNCHANGED
    writer.save("cache")
    assert really(folder) == {**UNCHANGED, "cache": "x"}
    for name in ("tensorboardX", "tensorboardX.writer"):
        sys.modules.pop(name)


def _make_library(place: Path) -> None:
    (place / "tensorboardX").mkdir(parents=True)
    (place / "tensorboardX" / "__init__.py").write_text("")
    (place / "tensorboardX" / "writer.py").write_text(LIBRARY)


def _really_make(place: Path) -> None:
    thread = threading.Thread(target=place.mkdir)
    thread.start()
    thread.join()


def test_what_the_first_worker_makes_is_not_there(folder: Path, tmp_path: Path) -> None:
    """Before this one has made its own: a script may refuse to begin where its output is."""

    def first() -> None:
        enter(WorkerContext({}, None))
        side_effects.keep_files_apart(0, RunPaths(tmp_path))
        assert not os.path.exists("out")
        os.makedirs("out/a")
        with open("out/log.txt", "a") as file:
            file.write("of the first\n")
        Path("before.txt").write_text("after\n")
        torch.save(1, "best.pt")

    _really_make(tmp_path / "logs")
    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    assert set(really(folder)) == {"before.txt", "best.pt", "out", "out/a", "out/log.txt"}
    assert not os.path.exists("out") and not Path("out/log.txt").is_file()
    assert os.listdir() == ["before.txt"] and list(Path().glob("*.pt")) == []
    with pytest.raises(FileNotFoundError):
        os.listdir("out")
    os.makedirs("out")
    assert os.listdir("out") == []
    with open("out/log.txt", "a") as file:
        file.write("of the second\n")
    assert Path("out/log.txt").read_text() == "of the second\n"
    assert torch.load("best.pt") == 1  # this worker has saved none: better than none
    assert really(folder)["out/log.txt"] == "of the first\n"


def test_saving_in_a_thread_or_a_process(tmp_path: Path) -> None:
    """Where a worker is a process, all its threads are the script's."""
    script = f"""
import os, pickle, subprocess, sys, threading, torch
from pathlib import Path
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.train.files.side_effects import keep_files_apart
os.chdir({str(tmp_path)!r})
keep_files_apart(1, RunPaths(Path({str(tmp_path)!r})))
thread = threading.Thread(target=torch.save, args=(1, "thread.pt"))
thread.start()
thread.join()
assert torch.load("thread.pt") == 1
assert pickle.loads(pickle.dumps(torch.save)) is torch.save
assert pickle.loads(pickle.dumps(open)) is open
if os.fork() == 0:
    sys.exit()  # and does not take the folder with it
os.wait()
assert torch.load("thread.pt") == 1
print(os.environ["WANDB_MODE"], os.environ["MLFLOW_TRACKING_URI"])
"""
    home = tmp_path / "home"
    home.mkdir()
    ended = python("-c", script, env={**os.environ, "TMPDIR": str(home)})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("disabled file:///")
    assert list(home.iterdir()) == [] and list(tmp_path.glob("private-*")) == []
    assert not (tmp_path / "thread.pt").exists()
