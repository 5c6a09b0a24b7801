from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from commands import python

from phalanx.core.run_folder.run_paths import RunPaths

SHOW = """
import json, os, sys
from dataclasses import dataclass
import beside
@dataclass
class Local:
    x: "int"
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0],
    "main": sys.modules["__main__"].Local is Local, "annotation": Local.__annotations__["x"],
    "beside": beside.VALUE, "torch": "torch" in sys.modules,
    "cpus": sorted(os.sched_getaffinity(0)),
}))
"""


def bootstrap(
    folder: Path, text: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], RunPaths]:
    folder.joinpath("script.py").write_text(text)
    folder.joinpath("beside.py").write_text("VALUE = 42\n")
    paths = RunPaths(folder / "run").make()
    env = {**os.environ, "PHALANX_RANK": "0", "PHALANX_RUN": str(paths.folder), **variables}
    words = ("-m", "phalanx.launch.worker.bootstrap", "script.py", "a", "b c")
    return python(*words, env=env, cwd=folder), paths


def test_the_script_runs_as_plain_python_would_run_it(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    done, _ = bootstrap(tmp_path, SHOW, PHALANX_CPUS=str(core))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["cpus"] == [core]
    expected = json.loads(python("script.py", "a", "b c", cwd=tmp_path).stdout)
    del seen["cpus"], expected["cpus"]
    assert seen == expected


def test_a_core_that_does_not_exist_is_not_fatal(tmp_path: Path) -> None:
    done, _ = bootstrap(tmp_path, "print('ran')", PHALANX_CPUS="1000")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "cannot pin" in done.stderr


def test_a_stop_is_143_without_traceback(tmp_path: Path) -> None:
    text = "from phalanx.core.errors import RunStopped\nraise RunStopped"
    done, paths = bootstrap(tmp_path, text)
    assert done.returncode == 143
    assert not paths.traceback_of(0).exists()


def test_a_stop_while_a_failure_is_written_is_no_traceback(tmp_path: Path) -> None:
    text = """
import os, signal
from pathlib import Path
from phalanx.core.errors import RunStopped
from phalanx.core.run_folder.run_paths import RunPaths

def stop(*_):
    raise RunStopped

os.mkfifo(RunPaths(Path(os.environ["PHALANX_RUN"])).traceback_of(0))  # its writer waits for ever
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 1.0)
1 / 0
"""
    done, _ = bootstrap(tmp_path, text)
    assert done.returncode == 143
    assert done.stderr == ""


def test_a_stop_while_the_script_ends_is_no_traceback(tmp_path: Path) -> None:
    text = """
from phalanx.core.context import call_at_end
from phalanx.core.errors import RunStopped

def stop():
    raise RunStopped

call_at_end(lambda: print("the others are called"))
call_at_end(stop)
"""
    done, _ = bootstrap(tmp_path, text)
    assert (done.stdout, done.stderr) == ("the others are called\n", "")


def test_the_traceback_is_the_users_own(tmp_path: Path) -> None:
    done, paths = bootstrap(tmp_path, "def f():\n    1 / 0\nf()\n")
    assert done.returncode == 1
    plain = python("script.py", cwd=tmp_path).stderr
    assert paths.traceback_of(0).read_text() == plain != ""


def test_a_failed_script_with_an_endless_thread_still_ends(tmp_path: Path) -> None:
    text = """
import sys, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
sys._getframe(1).f_globals["_LAST_WORDS"] = 0.2  # the runner of the script
raise ValueError("and a thread that never ends")
"""
    done, paths = bootstrap(tmp_path, text)
    assert done.returncode == 1
    assert "never ends" in paths.traceback_of(0).read_text()


def test_without_its_controller_a_worker_does_not_begin(tmp_path: Path) -> None:
    done, _ = bootstrap(tmp_path, "print('ran')", PHALANX_CONTROLLER="999999999")
    assert done.returncode == 1 and done.stdout == ""


RETURNS = """
import multiprocessing, sys

class Batch:
    pass

def make(number):
    return Batch()

if __name__ == "__main__":
    with multiprocessing.get_context("{}").Pool(1) as pool:
        print(type(pool.apply_async(make, (1,)).get(30)) is Batch)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_sends_back_what_the_script_defines(tmp_path: Path, method: str) -> None:
    """Also where ``multiprocessing`` was imported before the script, as adoption does it."""
    done, _ = bootstrap(tmp_path, RETURNS.format(method), PHALANX_SETTINGS='{"adopt": true}')
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


TERMINAL = """
import os, subprocess, sys
from phalanx.launch.worker.bootstrap import give_terminal
give_terminal()
print(subprocess.run(["stty", "size"], capture_output=True, text=True, timeout=10).stdout.strip())
print([sys.stdin.read(), sys.stdin.read()], os.get_terminal_size(0).columns > 0)
"""


def test_a_worker_has_a_terminal_of_some_size_and_no_input() -> None:
    ended = python("-c", TERMINAL, stdin=subprocess.DEVNULL, check=True)
    size, read = ended.stdout.splitlines()
    assert all(int(number) > 0 for number in size.split())
    assert read == "['', ''] True"
