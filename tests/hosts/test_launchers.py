"""torchrun and Open MPI start the workers, on two machines: the result is that of one host."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from commands import succeeds
from trained import assert_same_model, model_of
from worker_runs import REPOSITORY, Workers, environment

from phalanx.lab.lab import Lab

DIGITS = str(REPOSITORY / "examples" / "digits.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")
COMMAND = str(Path(sys.executable).with_name("phalanx"))
TRAINING = ["--epochs", "2", "--seed", "3"]
SHOWN = ["PHALANX_KEY_FILE", "PHALANX_ADDRESS", "PHALANX_RUNS", "OMP_NUM_THREADS", "COLUMNS"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _variables(lab: Lab, folder: Path) -> dict[str, str]:
    """As the guide has it: a key and a network. Of the others each launcher has its own."""
    known = environment(lab, folder, "m1", 1) | {"PHALANX_ADDRESS": lab.state.subnet}
    return {k: v for k, v in known.items() if not k.startswith("PHALANX_") or k in SHOWN}


def by_torchrun(lab: Lab, folder: Path, each: int, worker: list[str]) -> Workers:
    first = lab.machine("m1").address
    started = Workers(folder)
    for rank, machine in enumerate(("m1", "m2")):
        words = [
            str(TORCHRUN), "--nnodes", "2", "--nproc-per-node", str(each),
            "--node-rank", str(rank), "--master-addr", first, "--master-port", "29500",
            "--no-python", COMMAND, "worker", *worker,
        ]  # fmt: skip
        started.start(lab, machine, words, _variables(lab, folder))
    return started


def by_mpirun(lab: Lab, folder: Path, each: int, worker: list[str]) -> Workers:
    """Over the real sshd of the machines."""
    key = folder / "ssh.key"
    key.touch(0o600)
    key.write_bytes(lab.key.read_bytes())
    known = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    shown = [word for name in SHOWN for word in ("-x", name)]
    words = [
        "mpirun", "--allow-run-as-root", "--host", f"m1:{each},m2:{each}", "--bind-to", "none",
        "--mca", "plm_rsh_args", f"-i {key} {known}", "--mca", "oob_tcp_if_include", "eth0",
        *shown, "-x", f"PHALANX_MEET={lab.machine('m1').address}:9900",
        COMMAND, "worker", *worker,
    ]  # fmt: skip
    started = Workers(folder)
    started.start(lab, "m1", words, _variables(lab, folder))
    return started


LAUNCHERS = {"torchrun": by_torchrun, "mpirun": by_mpirun}


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("strategy", ["allreduce", "async"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ends_like_a_run_on_one_host(
    machines: Lab, tmp_path: Path, launcher: str, strategy: str, each: int
) -> None:
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed here (Debian: openmpi-bin)")
    worker = [DIGITS, "--strategy", strategy, *TRAINING]
    with LAUNCHERS[launcher](machines, tmp_path, each, worker) as workers:
        workers.finish()
        (folder,) = workers.runs
    assert len(list(folder.glob("events/rank-*.jsonl"))) == 2 * each
    if strategy != "allreduce":
        model_of(folder)
        return
    words = ["--workers", str(2 * each), "--strategy", strategy, *TRAINING]
    (tmp_path / "alone").mkdir()
    succeeds("run", DIGITS, *words, cwd=tmp_path / "alone", OMP_NUM_THREADS="1")
    (expected,) = (p for p in (tmp_path / "alone" / "runs").glob("[!.]*") if p.is_dir())
    assert_same_model(folder, expected)
