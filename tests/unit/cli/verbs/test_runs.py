"""The verbs that look at runs: runs, logs, stop, report."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cli_support import Shell
from made_runs import write_run, write_study
from rich.console import Console

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.report.load import StudyData, load_run, load_study
from phalanx.report.tables import print_table

OLD, NEW = "20250101-000000-train-allreduce", "20250102-000000-train-async"
STUDY = "20250101-000000-study"


@pytest.fixture
def house(shell: Shell) -> Shell:
    """Two finished runs of one study."""
    for name, strategy in ((OLD, "allreduce"), (NEW, "async")):
        paths = write_run(
            shell.runs, name, strategy=strategy, script=str(shell.folder / "train.py")
        )
        for rank in range(2):
            paths.log_of(rank).write_text(f"{strategy} {rank}\n[bold] kept\nno newline")
        paths.source.mkdir()
        (paths.source / "train.py").write_text("import phalanx")
    write_study(shell.runs, STUDY, [OLD, NEW], script=str(shell.folder / "train.py"))
    shell.script()
    return shell


def control(paths: RunPaths, pid: int, created: float) -> None:
    paths.controller.write_text(json.dumps({"pid": pid, "created": created}))


@contextmanager
def controller(paths: RunPaths, on_stop: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the run as its controller does, and answers SIGTERM by ``on_stop``."""
    code = f"""
import json, os, pathlib, signal, sys, time
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.summary.run_lock import hold
paths = RunPaths(pathlib.Path(sys.argv[1]))
def stop(*_):
    {on_stop}
signal.signal(signal.SIGTERM, stop)
with hold(paths):
    print("ready", flush=True)
    time.sleep(60)
"""
    words = [sys.executable, "-c", code, str(paths.folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_runs_are_listed_newest_last(house: Shell) -> None:
    answer = house("runs")

    listed = [line.split()[0] for line in answer.out.splitlines()[1:]]
    assert listed == [STUDY, OLD, NEW]
    assert answer.out.splitlines()[1].split() == [STUDY, "study", "2", "runs"]
    assert max(map(len, answer.out.splitlines())) <= 80


def test_eighty_columns_for_runs_that_went_on(
    house: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every id is whole; a long one has a line of its own, which it needs not in a pipe."""
    longest = "20250103-000000-cifar_resnet-allreduce-0.5-async-resumed"
    origins = {"20250102-100000-train-async-resumed": NEW, longest: "20250103-000000-x-async"}
    for name, origin in origins.items():
        strategy = "allreduce@0.5/async" if name == longest else "async"
        paths = write_run(house.runs, name, strategy=strategy)
        launch = json.loads(paths.launch.read_text())
        paths.launch.write_text(json.dumps(launch | {"resumes": f"{origin}, checkpoint 140"}))
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = house("runs").out.splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    lines = house("runs").out.splitlines()

    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "resumed from" in line] == [
        f"  resumed from {origin}, checkpoint 140" for origin in origins.values()
    ]
    assert [line.split()[0] for line in lines if line.startswith("2025")] == [
        STUDY, OLD, NEW, *origins
    ]  # fmt: skip
    details = lines[lines.index(longest) + 1]
    assert details.split()[:3] == ["done", "allreduce@0.5/async", "2"]
    others = [len(line) for line in lines if line.endswith(" %")]
    assert len(set(others)) == 1 and len(others) == 4, "the columns of numbers end alike"
    assert piped[-2].split()[:3] == [longest, "done", "allreduce@0.5/async"]


def test_the_listing_can_be_cut_short(house: Shell) -> None:
    answer = house("runs", "--limit", "1", "--json")

    (row,) = answer.json["runs"]
    assert row["run"] == NEW
    assert row["status"] == "done"
    assert row["strategy"] == "async"
    assert row["workers"] == 2
    assert 0.5 < row["test_accuracy"] < 1
    assert "2 older" in answer.err


def test_logs_are_shown_as_they_are(house: Shell) -> None:
    assert house("logs").out == "async 0\n[bold] kept\nno newline\n"
    assert house("logs", OLD, "--rank", "1").out.startswith("allreduce 1\n")
    assert house("logs", STUDY).out.startswith("async 0\n"), "the newest of a study"


def test_logs_as_json_keep_stdout_for_the_object(house: Shell) -> None:
    answer = house("logs", "--json")

    assert len(answer.out.splitlines()) == 1
    assert answer.json["lines"] == 3
    assert Path(answer.json["log"]).read_text().startswith("async 0")
    assert "[bold] kept" in answer.err


def test_a_folder_that_is_no_run(house: Shell) -> None:
    answer = house("report", str(house.folder))
    assert answer.code == 2
    assert "is not a run" in answer.errors[0]


def test_stop_says_when_there_is_nothing_to_stop(house: Shell) -> None:
    assert house("stop").out == "nothing is running\n"
    assert house("stop", NEW, "--json").json == {"run": NEW, "stopped": False, "status": "done"}


def test_stop_ends_the_recorded_controller(house: Shell) -> None:
    paths = RunPaths(house.runs / NEW)
    # A controller that ends in order: it leaves its summary and takes its record away.
    ending = (
        "paths.summary.write_text(json.dumps({'run': 'x', 'status': 'stopped'})); sys.exit(130)"
    )
    with controller(paths, ending) as process:
        assert house("stop", STUDY, "--json").json == {
            "run": NEW,
            "stopped": True,
            "status": "stopped",
        }
        assert process.wait(timeout=60) == 130


def test_stop_never_signals_a_process_that_only_has_the_number(house: Shell) -> None:
    """Process ids are used again: this very process has the recorded one, but is younger."""
    control(RunPaths(house.runs / NEW), os.getpid(), created=1.0)

    assert house("stop").out == "nothing is running\n"


def test_stop_never_signals_a_stranger_that_a_folder_names(house: Shell) -> None:
    """Number and age of a process are public; what it has open and locked is not to be forged."""
    paths = RunPaths(house.runs / NEW)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        created = psutil.Process(stranger.pid).create_time()
        control(paths, stranger.pid, created)
        assert house("stop").out == "nothing is running\n"
        with paths.controller.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # by somebody else than the process that is named
            assert house("stop").out == "nothing is running\n"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_stop_never_follows_a_link_to_another_run_s_controller(house: Shell) -> None:
    paths = RunPaths(house.runs / OLD)
    with controller(paths, "sys.exit(1)") as process:
        RunPaths(house.runs / NEW).controller.symlink_to(paths.controller)
        assert house("stop", NEW, "--json").json["stopped"] is False
        assert process.poll() is None


def test_a_reader_of_the_record_is_not_the_controller(house: Shell) -> None:
    paths = RunPaths(house.runs / NEW)
    control(paths, os.getpid(), psutil.Process().create_time())
    with paths.controller.open() as file:
        assert house("stop").out == "nothing is running\n"
        assert file.read()


def test_a_controller_that_does_not_end_is_reported(
    house: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.cli.verbs.stop.PATIENCE_SECONDS", 0.3)
    with controller(RunPaths(house.runs / NEW), "pass") as process:
        answer = house("stop")
        assert answer.code == 3
        assert f"process {process.pid}" in answer.errors[0]
        assert f"kill -KILL {process.pid}" in answer.errors[1]


@pytest.mark.usefixtures("undrawn")
def test_report_of_the_newest_run_is_its_study_s(house: Shell) -> None:
    answer = house("report", "--json")

    assert answer.json["run"] == STUDY
    assert Path(answer.json["report"]).read_text(encoding="utf-8").startswith("<!")
    assert answer.json["bundle"] is None
    assert "allreduce" in answer.err


@pytest.mark.usefixtures("undrawn")
def test_report_of_several_runs_is_a_new_study_of_them(house: Shell, tmp_path: Path) -> None:
    write_run(house.runs, "20250103-000000-alone", strategy="bsp")
    answer = house("report", "alone", NEW, NEW, "--json")

    study = load_study(RunPaths(house.runs / answer.json["run"]))
    assert [run.paths.id for run in study.runs] == ["20250103-000000-alone", NEW]
    assert answer.json["run"] != STUDY
    elsewhere = write_run(tmp_path / "other", "20250104-000000-far", strategy="bsp")
    refused = house("report", NEW, str(elsewhere.folder))
    assert (refused.code, "Give runs of one folder only" in refused.err) == (2, True)


@pytest.mark.usefixtures("undrawn")
def test_report_of_one_run_and_its_bundle_are_where_it_says(house: Shell) -> None:
    answer = house("report", OLD, "--bundle", "--output", "out.tar.gz")

    assert answer.code == 0
    assert f"report  {RunPaths(house.runs / OLD).report}\n" in answer.out
    assert "bundle  out.tar.gz\n" in answer.out
    with tarfile.open(house.folder / "out.tar.gz") as archive:
        assert any(name.endswith("train.py") for name in archive.getnames())


def test_a_bundle_through_a_link_that_the_user_named(house: Shell) -> None:
    """Only a link in the run's folder is somebody else's; this one is the user's own."""
    (house.folder / "link.tar.gz").symlink_to(house.folder / "real.tar.gz")
    write_run(house.runs, "20250103-000000-empty", epochs=0)
    answer = house("report", "empty", "--bundle", "--output", "link.tar.gz")

    assert "bundle  link.tar.gz\n" in answer.out
    assert (house.folder / "link.tar.gz").is_symlink()
    assert tarfile.is_tarfile(house.folder / "real.tar.gz")


@pytest.mark.parametrize("text", ['{"runs": 5}', "[" * 100_000, '{"runs": ["../../x", 3]}', "5"])
def test_a_broken_study_hides_no_other_run(house: Shell, text: str) -> None:
    (house.runs / STUDY / "study.json").write_text(text)
    answer = house("runs")

    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()[1:]] == [STUDY, OLD, NEW]
    assert house("stop", STUDY).code == 0
    assert house("logs", STUDY).code == 2


def test_a_log_of_no_rank_is_passed_over(house: Shell) -> None:
    (house.runs / NEW / "logs" / "rank-x.log").write_text("")
    answer = house("logs", "--rank", "7")
    assert answer.errors == [
        f"error: run '{NEW}' has no rank 7",
        "hint: Use one of its ranks: 0, 1.",
    ]


def test_a_folder_or_a_pipe_in_the_place_of_a_file(house: Shell) -> None:
    paths = RunPaths(house.runs / NEW)
    for file in (paths.events_of(0), paths.log_of(0), paths.machine("here")):
        file.unlink()
        file.mkdir()
    os.mkfifo(paths.events_of(2))
    paths.plan.unlink()
    os.mkfifo(paths.plan)

    assert [row["run"] for row in house("runs", "--json").json["runs"]] == [STUDY, OLD, NEW]
    assert house("stop", NEW).code == 0
    assert house("logs", NEW).errors[0] == f"error: run '{NEW}' has no rank 0"
    assert load_study(paths).runs[0].summary.run == NEW


def test_what_files_say_cannot_steer_the_terminal(house: Shell) -> None:
    hostile = "\x1b]0;owned\x07\x9b31m" + "done"
    paths = RunPaths(house.runs / NEW)
    summary = {"run": NEW, "status": hostile, "strategy": hostile}
    paths.summary.write_text(json.dumps(summary))

    study = StudyData(paths, hostile, [], None, (load_run(paths),))
    console = Console(file=io.StringIO(), width=80)
    print_table(study, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (house("stop", NEW).out, house("runs").out, shown):
        assert "done" in text
        assert not set(text) & set("\x1b\x07\x9b")


PREPARES = """
import time
import torch
import phalanx
train, test = phalanx.data.load("digits")
time.sleep(0.5)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = torch.nn.functional.cross_entropy
phalanx.fit(model, optimizer=optimizer, loss=loss, train=train, epochs=1, batch=500)
"""


def test_what_a_script_does_to_its_data_is_preparation(shell: Shell) -> None:
    words = ("--strategy", "single", "--launcher", "inprocess", "--json")
    answer = shell("run", shell.script(PREPARES), *words)
    phases = answer.json["phases"]
    assert phases["prepare"] >= 0.5
    assert phases["read"] > 0 and phases["start"] > 0
    assert sum(value or 0 for value in phases.values()) <= answer.json["seconds"] + 1
