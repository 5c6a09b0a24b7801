"""``phalanx worker``: processes that a cluster's launcher starts, and the folder they leave."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from cli_support import TRAINING, Shell

from phalanx.core.run_folder.run_key import RunKey
from phalanx.observe.summary.summary import Summary

# What join does about the launcher's numbers: all workers meet before any of them goes on.
SEATED = """
import os, socket, time
from pathlib import Path
from phalanx.train.start.launcher_env import seat_of
seat = seat_of(os.environ, socket.gethostname())
os.environ.update(PHALANX_RANK=str(seat.process), PHALANX_WORKERS=str(seat.processes))
files = Path(os.environ["PHALANX_RUN"]) / "files"
(files / f"met-{seat.process}").touch()
deadline = time.monotonic() + 30
while len(list(files.glob("met-*"))) < seat.processes:
    assert time.monotonic() < deadline, "the other one never came"
    time.sleep(0.01)
"""
ENDING = 60.0


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "key"
    file.write_text(RunKey.new().text())
    file.chmod(0o600)
    monkeypatch.setenv("PHALANX_KEY_FILE", str(file))
    monkeypatch.setenv("PHALANX_MEET", "127.0.0.1:9900")
    return file


def start(process: int, *words: str) -> subprocess.Popen[str]:
    seat = {"PHALANX_PROCESS": str(process), "PHALANX_PROCESSES": "2"}
    return subprocess.Popen(
        [sys.executable, "-m", "phalanx", "worker", *words],
        env={**os.environ, **seat},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def both(*words: str) -> list[tuple[int, str, str]]:
    """Two processes to their end: exit code, stdout, stderr of each."""
    processes = [start(number, *words) for number in range(2)]
    texts = [process.communicate(timeout=ENDING) for process in processes]
    return [(p.returncode, out, err) for p, (out, err) in zip(processes, texts, strict=True)]


def only_run(shell: Shell) -> Path:
    (found,) = (f for f in shell.runs.iterdir() if not f.name.startswith("."))
    return found


def summary(folder: Path) -> Summary:
    return msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)


def test_two_processes_leave_one_folder_that_the_other_verbs_read(shell: Shell) -> None:
    script = shell.script(SEATED + TRAINING)
    ended = both(script, "--strategy", "async", "--epochs", "3", "--", "a", "b")
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert "words: ['a', 'b']" in ended[1][1]
    folder = only_run(shell)
    told = summary(folder)
    assert (told.status, told.strategy, told.workers, told.epochs) == ("done", "async", 2, 3)
    assert (folder / "source" / "train.py").is_file()
    assert not (folder / "controller.json").exists()
    assert folder.name in ended[0][1]
    assert shell("runs", "--json").json["runs"][0]["status"] == "done"
    assert shell("logs", "--rank", "1").out == "words: ['a', 'b']\n"
    assert shell("report").code == 0


def test_a_failing_script_is_told_with_its_traceback(shell: Shell) -> None:
    script = shell.script(SEATED + TRAINING)
    ended = both(script, "--", "fail-allreduce")
    assert [code for code, _, _ in ended] == [1, 1]
    assert "ValueError: as asked" in ended[0][2]
    assert "phalanx/cli" not in ended[0][2]
    told = summary(only_run(shell))
    assert (told.status, told.exit_codes) == ("failed", [1, None])


def test_a_signal_stops_it_in_order(shell: Shell) -> None:
    script = shell.script(SEATED + TRAINING)
    processes = [start(number, script, "--", "hang") for number in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert "words" in process.stdout.readline()
        assert shell("runs", "--json").json["runs"][0]["status"] == "running"
        processes[0].send_signal(signal.SIGTERM)
        processes[1].send_signal(signal.SIGINT)
        deadline = time.monotonic() + ENDING
        assert [p.wait(max(0.1, deadline - time.monotonic())) for p in processes] == [130, 130]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert summary(only_run(shell)).status == "stopped"


def test_a_script_that_never_joins_is_refused(shell: Shell) -> None:
    script = shell.script("import sys\nif len(sys.argv) > 1:\n    import phalanx; phalanx.fit()\n")
    (code, _, err), _ = both(script)
    assert code == 2
    assert "never called phalanx.fit" in err


def seated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_PROCESS", "0")
    monkeypatch.setenv("PHALANX_PROCESSES", "2")


def test_a_new_key_is_private_and_never_replaces_one(shell: Shell) -> None:
    assert shell("worker", "--new-key", "new").code == 0
    file = shell.folder / "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    RunKey.from_text(text)
    again = shell("worker", "--new-key", "new")
    assert again.code == 2
    assert file.read_text() == text
    assert text.strip() not in again.out + again.err


def test_alone_it_says_how_to_start_it(shell: Shell) -> None:
    answer = shell("worker", shell.script())
    assert (answer.code, len(answer.errors)) == (2, 2)
    assert "torchrun" in answer.err


def test_without_a_key_nothing_starts(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    seated(monkeypatch)
    monkeypatch.delenv("PHALANX_KEY_FILE")
    answer = shell("worker", shell.script())
    assert answer.code == 2
    assert "--new-key" in answer.err
    assert not shell.runs.exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "script"),
        (("train.py", "--batch", "1"), "batch"),
        (("train.py", "--strategy", "alreduce"), "allreduce"),
        (("train.py", "--precision", "float33"), "float32"),
        (("train.py", "--seed", "-1"), "--seed"),
        (("train.py", "--pool", "none.yaml"), "none.yaml"),
        (("trian.py",), "train.py"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], named: str
) -> None:
    seated(monkeypatch)
    shell.script()
    answer = shell("worker", *words)
    assert answer.code == 2
    assert named in answer.err
    assert "Traceback" not in answer.err
    assert not shell.runs.exists()
