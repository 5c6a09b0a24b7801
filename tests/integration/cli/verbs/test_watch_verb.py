"""``phalanx watch`` as a process: its address, its end, what others on the machine see of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cli_support import TRAINING, Shell
from commands import python
from made_runs import write_run, write_study
from watch_client import Client, Events

from phalanx.cli.watch.watch import is_desktop, opened_browser, tunnel

RUN = "20250102-000000-made"
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/enter\?token=([\w-]{43})(#\S*)?")
LOADED = """
import sys
print([name for name in sys.modules if name.startswith(("phalanx.watch", "uvicorn", "starlette"))])
"""
LONG = 60.0


@contextmanager
def watching(folder: Path, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    plain = {n: v for n, v in os.environ.items() if n not in ("DISPLAY", "SSH_CONNECTION")}
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", *words],
        env=plain | variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LONG)


def address_of(process: subprocess.Popen[str]) -> re.Match[str]:
    assert process.stdout is not None
    found = ADDRESS.search(process.stdout.readline())
    assert found is not None
    return found


@pytest.fixture
def made(shell: Shell) -> Shell:
    write_run(shell.runs, RUN)
    return shell


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_0_while_pages_are_open(made: Shell, number: signal.Signals) -> None:
    with watching(made.folder, "watch") as process:
        found = address_of(process)
        assert found[3] == f"#/run/{RUN}", "the newest run is shown first"
        client = Client(int(found[1]))
        client.enter(found[0])
        pages = [Events(client, f"/api/run/{RUN}/stream") for _ in range(3)]
        stalled = socket.create_connection(("127.0.0.1", client.port))
        stalled.sendall(b"GET / HTTP/1.1\r\n")
        for page in pages:
            page.next("state")
        process.send_signal(number)
        assert process.wait(LONG) == 0
        stalled.close()
        for page in pages:
            page.close()


def test_a_token_is_printed_and_nowhere_else(made: Shell) -> None:
    with watching(made.folder, "watch", RUN) as process:
        found = address_of(process)
        words = psutil.Process(process.pid).cmdline()
        variables = psutil.Process(process.pid).environ()
        client = Client(int(found[1]))
        entered = client.enter(found[0])
        client("/", Referer=found[0])
        client("/enter?token=wrong")
        process.terminate()
        out, errors = process.communicate(timeout=LONG)
        cookie = client.headers["Cookie"].partition("=")[2]
        for secret in (found[2], cookie):
            assert secret not in f"{words} {variables} {out} {errors}"
            for file in made.folder.rglob("*"):
                assert not file.is_file() or secret.encode() not in file.read_bytes()
        assert found[2] not in str(entered.headers) + entered.body.decode()
        following = ADDRESS.findall(errors)
        assert len(following) == 1, "one more address, as the first has been used; no other line"
        assert len(errors.splitlines()) == 1


def test_a_page_comes_back_after_a_restart(made: Shell) -> None:
    with watching(made.folder, "watch") as process:
        found = address_of(process)
        client = Client(int(found[1]))
        client.enter(found[0])
        process.terminate()
        assert process.wait(LONG) == 0
    with watching(made.folder, "watch", "--port", found[1]) as process:
        again = address_of(process)
        assert again[1] == found[1]
        assert client(f"/api/run/{RUN}").status == 200
        assert client(f"/enter?token={found[2]}").status == 303, "an open page that is loaded again"
        assert Client(client.port)(f"/enter?token={found[2]}").status == 401


def test_a_used_port_is_one_line_with_a_remedy(made: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = made("watch", "--port", str(port))
        assert answer.code == 2
        assert answer.errors == [
            f"error: port {port} of this machine is in use",
            "hint: Give another --port, or none for a free one.",
        ]
    assert made("watch", "--port", "65536").code == 2
    assert made("watch", "no-such-run").errors[0] == "error: there is no run 'no-such-run'"


def test_a_terminal_needs_no_port(made: Shell) -> None:
    shown = made("watch", "--terminal")
    assert shown.code == 0
    assert "made" in shown.out
    assert "127.0.0.1" not in shown.out
    assert made("watch", "--terminal", "--port", "1").code == 2


def test_without_runs_there_is_the_list(shell: Shell) -> None:
    with watching(shell.folder, "watch", "--json") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert '"run": null' in line
        found = ADDRESS.search(line)
        assert found is not None
        assert found[3] is None
        client = Client(int(found[1]))
        client.enter(found[0])
        assert client("/api/runs").json["runs"] == []


def test_a_study_and_another_folder(made: Shell, tmp_path: Path) -> None:
    write_study(made.runs, "20250103-000000-study", [RUN])
    elsewhere = write_run(tmp_path / "kept", "20240101-000000-old")
    with watching(made.folder, "watch") as process:
        assert address_of(process)[3] is None, "of a study the list is shown"
    with watching(made.folder, "watch", str(elsewhere.folder)) as process:
        found = address_of(process)
        client = Client(int(found[1]))
        client.enter(found[0])
        assert [run["id"] for run in client("/api/runs").json["runs"]] == [elsewhere.id]


def test_a_run_shows_itself_while_it_trains(shell: Shell) -> None:
    script = shell.script()
    words = ("run", script, "--watch", "--name", "seen", "--epochs", "2", "--", "hang")
    with watching(shell.folder, *words) as process:
        found = address_of(process)
        client = Client(int(found[1]))
        client.enter(found[0])
        run = (found[3] or "").removeprefix("#/run/")
        deadline = time.monotonic() + LONG
        while client(f"/api/run/{run}").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert client(f"/api/run/{run}").json["status"] == "running"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LONG)
        assert f"phalanx watch --port {found[1]} {run}" in out
        assert "watch" not in (shell.runs / run / "launch.json").read_text()


def test_a_comparison_shows_the_list(shell: Shell) -> None:
    words = ("compare", shell.script(), "--watch", "--strategies", "allreduce")
    assert ADDRESS.search(shell(*words, "--dry-run").out) is None
    with watching(shell.folder, *words, "--", "hang") as process:
        found = address_of(process)
        assert found[3] is None
        client = Client(int(found[1]))
        client.enter(found[0])
        assert client("/api/runs").status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130


def test_a_run_that_nobody_watches_has_nothing_of_it(shell: Shell) -> None:
    """Neither its controller nor its workers load the pages, and its folder has no file of them."""
    script = shell.script(TRAINING + LOADED)
    controller = f"""
import sys, threading
from phalanx.cli.main import invoke
assert invoke(["run", {script!r}]) == 0
{LOADED}
print([thread.name for thread in threading.enumerate() if "watch" in thread.name])
"""
    answer = python("-c", controller, cwd=shell.folder, check=True)
    printed = [line for line in answer.stdout.splitlines() if line.startswith("[")]
    assert printed == ["[]"] * 3, "of worker 0 and the controller; its threads"
    assert [path.name for path in shell.runs.rglob("*") if "rollups" in path.name] == []


def test_a_session_over_ssh_is_given_the_tunnel(made: Shell) -> None:
    connection = "192.0.2.1 5000 192.0.2.10 22"
    with watching(made.folder, "watch", SSH_CONNECTION=connection, DISPLAY=":0") as process:
        port = address_of(process)[1]
        assert process.stdout is not None
        assert f"ssh -L {port}:127.0.0.1:{port} " in process.stdout.readline()
    assert "-p 2222" in str(tunnel({"SSH_CONNECTION": "::1 1 fe80::1%eth0 2222"}, 80))
    for words in ("", "1 2 3", "a b $(id) 22", "1.2.3.4 5 1.2.3.4 x"):
        assert tunnel({"SSH_CONNECTION": words}, 80) is None


def test_a_browser_is_only_opened_where_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_desktop({"DISPLAY": ":0"})
    assert is_desktop({"WAYLAND_DISPLAY": "wayland-0"})
    assert not is_desktop({"DISPLAY": ":0", "SSH_CONNECTION": "1 2 3 4"})
    assert not is_desktop({"DISPLAY": ""}) or sys.platform == "darwin"
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with opened_browser("http://127.0.0.1:1/enter?token=secret&x"):
        assert "secret" not in opened[0], "other users see the words of the browser's command"
        file = Path(opened[0].removeprefix("file://"))
        assert "token=secret&amp;x" in file.read_text()
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not file.parent.exists()
