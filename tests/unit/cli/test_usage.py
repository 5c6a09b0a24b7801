"""What is typed wrong is answered in one or two lines, with exit code 2; verbs are documented."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from cli_reference import PAGE, example_of, options_of, page, verbs
from cli_support import Shell
from commands import python

from phalanx.cli.invocation import Invocation
from phalanx.cli.main import VERBS
from phalanx.cli.usage import explain

REMOTE = "machines:\n  far: {host: 192.0.2.10, cores: 4}\n  near: {host: here}\n"

# The words, what the error has to name, and the remedy.
WRONG = [
    (["rn"], "unknown command 'rn'", "'run'"),
    (["run"], "missing argument 'SCRIPT'", "phalanx run --help"),
    (["pool"], "missing command", "phalanx pool --help"),
    (["run", "train.py", "--worker", "2"], "no option '--worker'", "'--workers'"),
    (["run", "train.py", "7"], "'7'", "after --"),
    (["run", "train.py", "--depth", "7"], "no option '--depth'", "SCRIPT -- --depth"),
    (["runs", "--", "7"], "no arguments after --", "run, compare, plan, simulate, worker"),
    (
        ["run", "train.py", "--epochs", "abc"],
        "--epochs must be a whole number, not 'abc'",
        "--help",
    ),
    (["run", "train.py", "--epochs", "0"], "--epochs must be at least 1, not 0", "--epochs 1"),
    (["run", "train.py", "--workers", "-3"], "at least 1, not -3", "--workers 1"),
    (["run", "train.py", "--workers", "4", "--batch", "3"], "3 is too small for 4", "--batch 4"),
    (["run", "train.py", "--seed", "-1"], "--seed must be at least 0", "--seed 0"),
    (["run", "train.py", "--precision", "bf16"], "unknown precision 'bf16'", "'bfloat16'"),
    (["run", "train.py", "--launcher", "locl"], "unknown launcher 'locl'", "'local'"),
    (["run", "train.py", "--strategy", "allreduc"], "strategy 'allreduc'", "'allreduce'"),
    (["run", "train.py", "--strategy", "pipeline"], "'pipeline' is not implemented", "Use one of"),
    (["run", "train.py", "--check", "0"], "--check must be a number of steps", "12,finite"),
    (["run", "train.py", "--slow", "1,x"], "not 'x'", "--slow 1,1,0.25"),
    (
        ["run", "train.py", "--slow", "1.5"],
        "--slow 1.5: each speed must be from 0.001 to 1",
        "0.25",
    ),
    (["run", "train.py", "--slow", "nan"], "from 0.001", "0.25"),
    (["run", "train.py", "--slow", "1,1"], "2 speeds for 1 worker", "--workers 2"),
    (["run", "train.py", "--rate", "fast"], "--rate cannot be 'fast'", "--rate 100mbit"),
    (["run", "train.py", "--rate", "5mbt"], "unknown unit 'mbt'", "mbit"),
    (["run", "train.py", "--rate", "0"], "is below 1kbit, the minimum", "--rate 1mbit"),
    (["run", "train.py", "--rate", "1e999"], "--rate 1e999", "the maximum"),
    (["run", "train.py", "--checkpoint-every", "often"], "cannot be 'often'", "1,10min"),
    (["run", "train.py", "--checkpoint-every", "1.5"], "epochs must be whole numbers", "10min"),
    (["run", "train.py", "--checkpoint-every", "1,2"], "epochs twice", "10min"),
    (["run", "train.py", "--checkpoint-every", "1min,2min"], "a time twice", "10min"),
    (["run", "train.py", "--checkpoint-every", "0min"], "above 0", "10min"),
    (["run", "train.py", "--checkpoint-every", "1,keep=0"], "keep must be a whole number", "0"),
    (["switch", "async"], "nothing is running", "phalanx run"),
    (["switch"], "missing argument", "phalanx switch --help"),
    (["switch", "a", "b", "c"], "at most a run", "phalanx switch async"),
    (["switch", "single"], "'single'", "phalanx switch async"),
    (["switch", "bsp:shares=equal"], "when a run starts", "phalanx switch async"),
    (["switch", "asink"], "'asink'", "'async'"),
    (["resume"], "no runs", "phalanx demo"),
    (["export"], "no runs", "phalanx demo"),
    (["export", "--best", "--checkpoint", "1"], "cannot be combined", "one of them"),
    (["run", "tran.py"], "no script 'tran.py'", "train.py"),
    (["run", "plain.py"], "calls neither phalanx.fit nor phalanx.join", "phalanx.fit("),
    (["run", "train.py", "--pool", "none.yaml"], "none.yaml", ""),
    (["run", "train.py", "--machines", "gpuz"], "gpuz", ""),
    (
        ["run", "train.py", "--pool", "pool.yaml", "--launcher", "local"],
        "the launcher 'local' cannot reach far",
        "host: here",
    ),
    (["compare", "train.py", "--repeat", "100000000"], "--repeat must be at most", "--repeat 1000"),
    (["run", "/dev/zero"], "'/dev/zero' is not a regular file", "Name a .py file"),
    (["compare", "train.py", "--batch", "64,x"], "not 'x'", "--batch 128,256"),
    (["compare", "train.py", "--batch", "64,64"], "64 twice", "--repeat"),
    (["compare", "train.py", "--strategies", "async,async"], "'async' twice", "--repeat"),
    (["compare", "train.py", "--strategies", "allreduce,asink"], "'asink'", "'async'"),
    (["logs"], "no runs", "phalanx demo"),
    (["report", "nothing"], "no runs", "phalanx demo"),
    (["report", "--output", "x.tar.gz"], "--output", "--bundle"),
    (["runs", "--limit", "0"], "--limit must be at least 1", "1"),
    (["pool", "check", "none.yaml"], "none.yaml", ""),
]


@pytest.fixture
def office(shell: Shell) -> Shell:
    shell.script()
    shell.script("print('hello')\n", "plain.py")
    (shell.folder / "pool.yaml").write_text(REMOTE)
    return shell


@pytest.mark.parametrize(("words", "cause", "remedy"), WRONG, ids=[" ".join(w) for w, *_ in WRONG])
def test_wrong_input_is_two_lines_at_most(
    office: Shell, words: list[str], cause: str, remedy: str
) -> None:
    answer = office(*words)

    assert answer.code == 2
    assert answer.out == ""
    assert len(answer.errors) <= 2
    assert answer.errors[0].startswith("error: ")
    assert cause in answer.errors[0]
    assert remedy in answer.err
    assert not office.runs.exists(), "nothing may start"


@pytest.mark.parametrize("words", [w for w, _, _ in WRONG[:3]], ids=" ".join)
def test_with_json_an_error_is_an_object(office: Shell, words: list[str]) -> None:
    answer = office(*words, "--json")

    assert answer.code == 2
    assert set(answer.json) == {"error", "remedy", "exit_code"}
    assert answer.json["exit_code"] == 2
    assert answer.errors[0] == f"error: {answer.json['error']}"


def test_a_run_folder_that_cannot_be_written(
    office: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (office.folder / "file").write_text("in the way")
    monkeypatch.setenv("PHALANX_RUNS", str(office.folder / "file" / "runs"))

    for words in (["run", "train.py"], ["compare", "train.py", "--workers", "2"]):
        answer = office(*words)
        assert answer.code == 2
        assert "cannot write the run folder" in answer.errors[0]
        assert "PHALANX_RUNS" in answer.errors[1]


def test_the_selected_machine_of_a_mixed_pool_may_be_here(office: Shell) -> None:
    answer = office("run", "train.py", "--pool", "pool.yaml", "--machines", "near", "--dry-run")

    assert answer.code == 0
    assert "rank 0 on near" in answer.out


def test_a_defect_is_one_line_unless_debugging(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("phalanx.core.run_folder.run_paths.list_runs", broken)
    answer = shell("runs")
    assert answer.code == 1
    assert answer.errors[0] == "error: unexpected RuntimeError: no such luck"
    assert "Traceback" not in answer.err

    monkeypatch.setenv("PHALANX_DEBUG", "1")
    assert "Traceback" in shell("runs").err


def test_ctrl_c_is_exit_130(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.core.run_folder.run_paths.list_runs", interrupted)
    answer = shell("runs", "--json")
    assert answer.code == 130
    assert answer.json["error"] == "stopped"


@pytest.mark.parametrize("verb", [name for name, _ in verbs()])
def test_every_help_has_an_example_that_names_the_verb(shell: Shell, verb: str) -> None:
    answer = shell(*verb.split(), "--help")

    assert answer.code == 0
    command = dict(verbs())[verb]
    assert example_of(command).startswith(f"phalanx {verb}")
    assert f"Example: phalanx {verb}" in answer.out
    assert "--json" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_the_overview_lists_the_verbs_in_order(shell: Shell) -> None:
    answer = shell("--help")

    listed = [line.split()[0] for line in answer.out.partition("Commands:")[2].splitlines() if line]
    assert listed[: len(VERBS)] == [example.split()[1] for _, example in VERBS]
    assert shell().out == answer.out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from phalanx.cli.main import invoke; invoke(['--help']);"
        "print('LOADED', [m for m in ('torch', 'matplotlib', 'pydantic', 'numpy', 'uvicorn')"
        " if m in sys.modules])"
    )
    answer = python("-c", code, check=True)
    assert answer.stdout.splitlines()[-1] == "LOADED []"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    code = "from phalanx.cli.main import main; main(['--help'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    _, errors = process.communicate(timeout=180)
    assert errors == ""


def test_the_page_is_what_the_program_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run: python tests/unit/cli/cli_reference.py"


def test_no_verb_has_more_than_25_options() -> None:
    counts = {name: len(options_of(command)) for name, command in verbs()}  # besides --help
    assert {name: count for name, count in counts.items() if count > 25} == {}


def test_a_full_disk_is_no_defect() -> None:
    told = explain(OSError(errno.ENOSPC, "No space left on device", "runs/x"), Invocation(("run",)))
    assert (told.exit_code, told.cause) == (3, "the disk is full (runs/x)")
