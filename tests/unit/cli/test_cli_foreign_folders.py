"""A run folder that somebody else made: it names machines, programs and paths in vain."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cli_support import Shell
from made_checkpoints import write_checkpoint
from made_runs import write_run, write_study

from phalanx.cli.request.find_run import study_runs
from phalanx.core.errors import InputError
from phalanx.core.run_folder import trust
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.run_folder.trust import is_own, write_launch
from phalanx.launch.launcher import Launch
from phalanx.observe.summary.history import source_of
from phalanx.report.load import load_study


class Server:
    """Counts who connects, as an SSH server that collects passwords would."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.visits = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.visits += 1
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class Trap:
    """A folder whose blueprint has a program as Python, and a server that wants the password."""

    def __init__(self, shell: Shell, server: Server) -> None:
        self.ran = shell.folder / "ran"
        self.server = server
        program = shell.folder / "python"
        program.write_text(f"#!/bin/sh\ntouch {self.ran}\nexit 1\n")
        program.chmod(0o755)
        self.pool = shell.folder / "evil.yaml"
        self.pool.write_text(
            "machines:\n"
            f"  here: {{host: here, python: {program}}}\n"
            f"  far: {{host: 127.0.0.1, port: {server.port}, user: x, password: 'env:SECRET'}}\n"
        )
        names = ("here", "far")
        self.paths = write_run(shell.runs, "20250101-000000-gift", status=None, machines=names)
        launch = Launch.from_json(self.paths.launch.read_bytes())
        script = shell.script(f"import phalanx, pathlib\npathlib.Path({str(self.ran)!r}).touch()\n")
        changed = msgspec.structs.replace(
            launch, pool=str(self.pool), launcher="ssh", script=str(shell.folder / script)
        )
        self.paths.launch.write_text(changed.to_json())

    def sprung(self) -> bool:
        return self.ran.exists() or self.server.visits > 0


@pytest.fixture
def trap(shell: Shell, server: Server, monkeypatch: pytest.MonkeyPatch) -> Trap:
    monkeypatch.setenv("SECRET", "hunter2")
    return Trap(shell, server)


@pytest.mark.parametrize("verb", ["stop", "attach"])
def test_a_foreign_detached_run_is_not_contacted(shell: Shell, trap: Trap, verb: str) -> None:
    trap.paths.detached.write_text("{}")
    answer = shell(verb, "gift")
    assert not trap.sprung()
    assert answer.code == 2 and len(answer.errors) == 2
    assert (
        "cannot verify that you started" in answer.errors[0] and str(trap.pool) in answer.errors[0]
    )
    assert "--pool FILE" in answer.errors[1]


def test_a_blueprint_that_the_user_names_is_consent(shell: Shell, trap: Trap) -> None:
    trap.paths.detached.write_text("{}")
    assert shell("attach", "gift", "--pool", str(trap.pool)).code == 3
    assert trap.sprung()


def test_resume_starts_nothing_that_a_foreign_folder_names(shell: Shell, trap: Trap) -> None:
    write_checkpoint(trap.paths, 1, value=1.0)
    answer = shell("resume", "gift")
    assert answer.code == 2 and "continuing would start" in answer.errors[0]
    assert "--trust" in answer.errors[1]
    answer = shell("resume", "gift", "--trust")
    assert answer.code == 2 and "contact the machines" in answer.errors[0]
    assert "--pool FILE" in answer.errors[1]
    assert not trap.sprung()


READERS = ["export", "runs", "logs", "switch", pytest.param("report", marks=pytest.mark.slow)]


@pytest.mark.parametrize("verb", READERS)
def test_verbs_that_read_contact_no_machine(shell: Shell, trap: Trap, verb: str) -> None:
    """Without a checkpoint, ``resume`` would look for one on the machines."""
    words = {"runs": [], "switch": ["gift", "async"]}.get(verb, ["gift"])
    shell(verb, *words)
    assert not trap.sprung()


def test_export_of_an_own_run_contacts_no_machine_either(shell: Shell, trap: Trap) -> None:
    write_launch(trap.paths, trap.paths.launch.read_text())
    assert shell("export", "gift").code == 2
    assert not trap.sprung()


def test_who_changes_a_record_or_moves_it_makes_it_foreign(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "runs", "one")
    assert is_own(paths)
    copy = RunPaths(shutil.copytree(paths.folder, tmp_path / "runs" / "two"))
    assert not is_own(copy), "what else is in a copied folder is not the user's"
    plan = paths.plan.read_bytes()
    paths.plan.write_bytes(plan.replace(b"here", b"away"))
    assert not is_own(paths)
    paths.plan.write_bytes(plan)
    assert is_own(paths)
    paths.launch.write_bytes(paths.launch.read_bytes() + b" ")
    assert not is_own(paths)


def test_a_record_that_is_written_again_stays_own_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_run(tmp_path, "one")
    write = trust.write_whole

    def killed(path: Path, content: str | bytes) -> None:
        write(path, content)
        raise KeyboardInterrupt

    monkeypatch.setattr(trust, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        write_launch(paths, paths.launch.read_text() + "\n")
    assert is_own(paths), "the signature is there before the record"


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_a_key_that_others_can_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    paths = write_run(tmp_path, "one")
    key = trust.key_file()
    assert key.stat().st_mode & 0o777 == 0o600 and key.stat().st_size == trust.KEY_BYTES
    key.chmod(mode)
    with pytest.raises(InputError, match="accessible to other users"):
        is_own(paths)
    key.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(key, 12345, -1)
        with pytest.raises(InputError, match="accessible to other users"):
            write_launch(paths, "{}")


def test_without_a_place_for_a_key_runs_go_on_unsigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    paths = RunPaths(tmp_path / "run").make()
    write_launch(paths, "{}")
    assert paths.launch.read_text() == "{}" and not is_own(paths)


@pytest.mark.parametrize("name", ["..", ".", "", "../other", "/etc", "a\0b"])
def test_a_study_names_runs_beside_it_only(shell: Shell, name: str) -> None:
    """``..`` made the folder above a run of the study."""
    write_run(shell.runs, "real")
    (shell.folder / "launch.json").write_text((shell.runs / "real/launch.json").read_text())
    study = write_study(shell.runs, "study", ["real", name])
    assert [run.id for run in study_runs(study)] == ["real"]
    assert [run.paths.id for run in load_study(study).runs] == ["real"]
    assert load_study(study).missing == ()


def test_a_run_goes_on_from_a_run_beside_it_only(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "real")
    write_run(tmp_path, "before")
    assert source_of(paths, "before, checkpoint 1") is not None
    assert source_of(paths, ".., checkpoint 1") is None


def test_runs_shows_the_name_of_the_folder(shell: Shell) -> None:
    paths = write_run(shell.runs, "real")
    summary = {"run": "another", "status": "done"}
    paths.summary.write_bytes(msgspec.json.encode(summary))
    assert [row["run"] for row in shell("runs", "--json").json["runs"]] == ["real"]
