"""The verbs that look at runs: runs, logs, stop, report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil
import pytest
from cli_support import Shell
from made_runs import write_run, write_study

from phalanx.core.run_paths import RunPaths

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
    write_study(shell.runs, STUDY, [OLD, NEW], script=str(shell.folder / "train.py"))
    shell.script()
    return shell


def control(paths: RunPaths, pid: int, created: float) -> None:
    paths.controller.write_text(json.dumps({"pid": pid, "created": created}))


def test_runs_are_listed_newest_last(house: Shell) -> None:
    answer = house("runs")

    listed = [line.split()[0] for line in answer.out.splitlines()[1:]]
    assert listed == [STUDY, OLD, NEW]
    assert answer.out.splitlines()[1].split() == [STUDY, "study", "2", "runs"]
    assert max(map(len, answer.out.splitlines())) <= 80


def test_a_long_id_is_never_cut(house: Shell) -> None:
    name = "20250103-000000-" + "a-long-name-" * 8 + "end"
    write_run(house.runs, name)

    assert name in house("runs").out


def test_the_listing_can_be_cut_short(house: Shell) -> None:
    answer = house("runs", "--limit", "1", "--json")

    (row,) = answer.json["runs"]
    assert row["run"] == NEW
    assert row["status"] == "done"
    assert row["strategy"] == "async"
    assert row["workers"] == 2
    assert 0.5 < row["test_accuracy"] < 1
    assert "2 older" in answer.err


def test_without_runs_it_says_how_to_start(shell: Shell) -> None:
    assert "phalanx demo" in shell("runs").out
    assert shell("runs", "--json").json == {"runs": []}


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


def test_following_the_log_of_an_ended_run_ends(house: Shell) -> None:
    assert house("logs", "--follow").out.endswith("no newline\n")


def test_a_rank_that_is_not_there(house: Shell) -> None:
    answer = house("logs", "--rank", "7")

    assert answer.code == 2
    assert answer.errors == [f"error: run '{NEW}' has no rank 7", "  It has 0, 1."]


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
    code = (
        "import json, pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    folder = pathlib.Path(sys.argv[1])\n"
        "    (folder / 'summary.json').write_text(json.dumps({'run': 'x', 'status': 'stopped'}))\n"
        "    (folder / 'controller.json').unlink()\n"
        "    sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(paths.folder)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        control(paths, process.pid, psutil.Process(process.pid).create_time())

        assert house("stop", STUDY, "--json").json == {
            "run": NEW,
            "stopped": True,
            "status": "stopped",
        }
        assert process.wait(timeout=10) == 130
    finally:
        process.kill()
        process.wait()


def test_stop_never_signals_a_process_that_only_has_the_number(house: Shell) -> None:
    """Process ids are used again: this very process has the recorded one, but is younger."""
    control(RunPaths(house.runs / NEW), os.getpid(), created=1.0)

    assert house("stop").out == "nothing is running\n"


def test_a_controller_that_does_not_end_is_reported(
    house: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.cli.stop.PATIENCE_SECONDS", 0.3)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        paths = RunPaths(house.runs / NEW)
        control(paths, process.pid, psutil.Process(process.pid).create_time())
        answer = house("stop")
        assert answer.code == 3
        assert f"process {process.pid}" in answer.errors[0]
        assert f"kill -KILL {process.pid}" in answer.errors[1]
    finally:
        process.kill()
        process.wait()


def test_report_of_the_newest_run_is_its_study_s(house: Shell) -> None:
    answer = house("report", "--json")

    assert answer.json["run"] == STUDY
    assert Path(answer.json["report"]).read_text(encoding="utf-8").startswith("<!")
    assert answer.json["bundle"] is None
    assert "allreduce" in answer.err


def test_report_of_one_run_and_its_bundle_are_where_it_says(house: Shell) -> None:
    answer = house("report", OLD, "--bundle", "--output", "out.tar.gz")

    assert answer.code == 0
    assert f"report  {RunPaths(house.runs / OLD).report}\n" in answer.out
    assert "bundle  out.tar.gz\n" in answer.out
    with tarfile.open(house.folder / "out.tar.gz") as archive:
        assert any(name.endswith("train.py") for name in archive.getnames())
