"""Unmodified scripts of PyTorch and TensorFlow on real machines, and what a failure does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from made_mnist import IMAGES, make_mnist
from ssh_runs import Bench, Running, cut, nothing_left

from phalanx.launch.frameworks.framework import MIRRORED, TENSORFLOW, Framework
from phalanx.launch.frameworks.peer_environments import TENSORFLOW_PACKAGES, environment_for

LAB = {"count": 4}
EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = 900.0
"""Seconds: TensorFlow on few cores, started several times at once."""


@pytest.fixture(scope="module")
def tensorflow() -> None:
    """An environment with TensorFlow, made before machines look for it and would make their own."""
    words = Framework(name=TENSORFLOW, system=MIRRORED, requirements=list(TENSORFLOW_PACKAGES))
    environment_for(words, print)


def foreign(bench: Bench, example: str, framework: str, names: str, *words: str) -> Running:
    """An example as it is, in a project of its own."""
    shutil.copy(EXAMPLES / example, bench.project)
    data = bench.folder / "data"
    make_mnist(data, zipped=True)
    common = ["--pool", str(bench.pool), "--machines", names, "--data", str(data)]
    return bench.start("run", example, "--framework", framework, *common, *words)


@pytest.mark.machines
def test_plain_ddp_with_one_and_two_workers(bench: Bench) -> None:
    ended = foreign(bench, "plain_ddp.py", "torch", "m1,m2", "--workers", "3").end(LONG)
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 0
    assert "3 workers" in ended.words
    summary = bench.summary()
    assert summary["exit_codes"] == [0, 0, 0]
    assert (summary["system"], summary["workers"]) == ("torch", 3)


def test_plain_ddp_on_a_machine_that_is_cut_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_RECONNECT", "0")  # Gloo waits for half an hour
    running = foreign(bench, "plain_ddp.py", "torch", "m1,m2")
    running.until(r"epoch 1", LONG)
    with cut(bench.lab, "m2"):
        ended = running.end(LONG)
        nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 3
    assert "m2 has not answered" in ended.words


@pytest.mark.machines
@pytest.mark.usefixtures("tensorflow")
def test_keras_script_of_reference_a_on_three_machines(bench: Bench) -> None:
    example = "reference_a_keras.py"
    bench.pool = bench.blueprint(m4={"gpus": 1})
    ended = foreign(bench, example, "tensorflow", "cpus").end(LONG)
    nothing_left(bench.lab, "m1", "m2", "m3", "m4")
    assert ended.code == 0
    summary = bench.summary()
    assert summary["exit_codes"] == [0, 0, 0]
    assert [machine["name"] for machine in summary["machines"]] == ["m1", "m2", "m3"]
    assert summary["system"] == "tf-mwms"
    assert "Epoch 3/3" in ended.words
    # Three times what the first worker had of each batch, also of a last one that is no multiple.
    assert summary["epochs"] == 3 and 0 <= summary["samples"] - 3 * IMAGES[0] < 9, "told by fit"
    assert summary["train_loss"] > 0 and 0 <= summary["train_accuracy"] <= 1


@pytest.mark.machines
@pytest.mark.usefixtures("tensorflow")
def test_parameter_server_with_a_chief_on_a_machine_of_its_own(bench: Bench) -> None:
    machines = "all,server:m2"
    ended = foreign(bench, "parameter_server_keras.py", "tensorflow", machines).end(LONG)
    nothing_left(bench.lab, "m1", "m2", "m3", "m4")
    assert ended.code == 0
    summary = bench.summary()
    assert summary["system"] == "tf-ps"
    assert summary["exit_codes"][0] == 0
    assert None not in summary["exit_codes"]
    launch = json.loads((bench.latest() / "launch.json").read_text())
    roles = [(worker["machine"], worker["role"]) for worker in launch["workers"]]
    assert roles == [("m1", "chief"), ("m3", "worker"), ("m4", "worker"), ("m2", "ps")]
    assert summary["epochs"] == 2 and summary["train_loss"] > 0, "told by fit itself"
