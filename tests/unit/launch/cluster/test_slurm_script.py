"""Options for sbatch, and what is refused before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.launch.cluster.slurm import read_options
from phalanx.launch.cluster.slurm_queue import SlurmJob, check_commands


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        ("partition=gpu,time=1:00:00", ["--partition=gpu", "--time=1:00:00"]),
        ("exclusive,gres=gpu:1", ["--exclusive", "--gres=gpu:1"]),
        ("nodelist=n1,n2,time=5", ["--nodelist=n1,n2", "--time=5"]),
        ("nodelist=n[1,2]", ["--nodelist=n[1,2]"]),
        ("comment=two words", ["--comment=two words"]),
    ],
)
def test_options_are_passed_on(text: str, options: list[str]) -> None:
    assert read_options(text) == options


@pytest.mark.parametrize("text", ["ntasks=4", "output=/tmp/x", "array=1-3", "wrap=ls"])
def test_what_phalanx_sets_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="that Phalanx sets"):
        read_options(text)


@pytest.mark.parametrize("text", ["--partition=gpu", "time=5\n#SBATCH --uid=0", "=x", "Time=5"])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="sbatch has no option"):
        read_options(text)


def test_without_sbatch_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        check_commands()
    assert caught.value.cause == "this machine has no 'sbatch', so it cannot submit to Slurm"
    assert "login node" in caught.value.remedy


def test_answers_of_squeue() -> None:
    job = SlurmJob("7")
    line = f"{'RUNNING':20}{'2':10}{'None':60}{'n[1-2]':300}\n"
    job._take(0, line, "")
    assert (job.last.state, job.last.restarts, job.last.nodes) == ("RUNNING", 2, "n[1-2]")
    job._take(1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    assert job.last.state == "RUNNING", "no answer ends no job"
    job._take(1, "", "slurm_load_jobs error: Invalid job id specified")
    assert job.last.over
