"""``compare --systems`` and ``run --framework`` with peers that pretend to train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Shell

from phalanx.launch.frameworks import peer_environments as peers

PEER = """
import json, os
if os.environ.get("RANK", "0") == "0":
    epochs = int(os.environ.get("PHALANX_EPOCHS", "5"))
    told = dict(parameters=1, batch=int(os.environ.get("PHALANX_BATCH", "10")), workers=2,
                samples=40, epochs=epochs)
    print("phalanx-figures", json.dumps(told))
    for epoch in range(epochs):
        print("phalanx-figures", json.dumps(dict(
            epoch=epoch, seconds=0.2, samples=40, train_loss=0.5, test_accuracy=ACCURACY)))
"""
AS_GOOD, WORSE = PEER.replace("ACCURACY", "0.755"), PEER.replace("ACCURACY", "0.6")


@pytest.mark.usefixtures("undrawn")
def test_systems_are_compared_in_one_table_with_their_losses_checked(shell: Shell) -> None:
    script = shell.script()
    shell.script(AS_GOOD, "train.ddp.py")
    answer = shell(
        "compare", "--systems", "phalanx,torch-ddp", script, "--workers", "2", "--epochs", "3",
        "--json",
    )  # fmt: skip

    assert answer.code == 0
    ours, theirs = answer.json["runs"]
    assert (ours["system"], ours["strategy"], theirs["system"]) == (
        "phalanx", "allreduce", "torch-ddp",
    )  # fmt: skip
    assert theirs["epochs"] == 3, "the command line's epochs reach the peer"
    assert (theirs["workers"], theirs["batch"]) == (2, 10)
    assert theirs["samples_per_second"] == pytest.approx(200)
    table = answer.err
    assert "phalanx allreduce" in table and "torch-ddp" in table
    assert "reference" in table and "agree" in table
    assert Path(answer.json["report"]).is_file()


@pytest.mark.usefixtures("undrawn")
def test_a_system_whose_losses_differ_has_no_ratio(shell: Shell) -> None:
    script = shell.script()
    shell.script(WORSE, "train.ddp.py")
    answer = shell("compare", "--systems", "phalanx,torch-ddp", script, "--workers", "2")

    assert answer.code == 0
    ratio = next(line for line in answer.out.splitlines() if line.startswith("time ÷"))
    assert "1.00" in ratio and "losses differ" in ratio
    assert "Times not compared" in answer.out
    assert "fastest" not in answer.out


@pytest.mark.usefixtures("undrawn")
def test_a_system_that_cannot_run_is_marked_and_the_others_go_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(peers.VARIABLE, "nowhere")
    script = shell.script()
    shell.script(AS_GOOD, "train.ddp.py")
    shell.script(AS_GOOD, "train.keras.py")
    answer = shell(
        "compare", "--systems", "tf-mwms,phalanx,torch-ddp", script, "--workers", "2", "--json"
    )

    assert answer.code == 2, "all that failed is what was asked for"
    assert [run["status"] for run in answer.json["runs"]] == ["failed", "done", "done"]
    assert [run["system"] for run in answer.json["runs"]] == ["tf-mwms", "phalanx", "torch-ddp"]
    assert "nowhere has no tensorflow" in next(iter(answer.json["failures"].values()))
    assert "Not finished: 1 of 3" in answer.err


def test_an_unmodified_script_runs_and_what_is_not_known_is_null(shell: Shell) -> None:
    script = shell.script("import os; print('rank', os.environ['RANK'])", "plain.py")
    answer = shell("run", "--framework", "torch", script, "--workers", "2", "--json")
    assert answer.code == 0
    assert (answer.json["system"], answer.json["status"]) == ("torch", "done")
    assert answer.json["exit_codes"] == [0, 0]
    assert answer.json["epochs"] is None and answer.json["test_loss"] is None
    assert "reported no metrics" in answer.err and "rank 0" in answer.err


def test_the_roles_of_a_dry_run(shell: Shell) -> None:
    script = shell.script("import tensorflow as tf\ntf.distribute.ParameterServerStrategy")
    answer = shell(
        "run", "--framework", "tensorflow", "--workers", "2", script, "--dry-run", "--json"
    )
    launch = answer.json["launches"][0]
    assert [worker["role"] for worker in launch["workers"]] == ["chief", "worker", "worker", "ps"]
    assert (launch["system"], launch["decides"], launch["joins"]) == ("tf-ps", [0], False)
    config = json.loads(launch["workers"][1]["env"]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 0}
    asked = shell("run", "--framework", "tensorflow:worker=2", script, "--dry-run", "--json")
    launch = asked.json["launches"][0]
    assert launch["system"] == "tf-mwms" and len(launch["workers"]) == 2


def test_a_script_with_tfds_gets_that_package_and_its_data(shell: Shell) -> None:
    script = shell.script("import tensorflow_datasets as tfds\nimport tensorflow as tf")
    words = ["run", "--framework", "tensorflow", script, "--data", ".", "--dry-run", "--json"]
    launch = shell(*words).json["launches"][0]
    assert "tensorflow-datasets==4.9.*" in launch["framework"]["requirements"]
    environment = launch["workers"][0]["env"]
    assert environment["TFDS_DATA_DIR"] == environment["PHALANX_DATA"]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_data_set_that_is_not_prepared_is_named(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    script = shell.script("import tensorflow_datasets as tfds\ntfds.load('mnist')\n")
    (shell.folder / "data" / ("mnist" if prepared else "cifar10")).mkdir(parents=True)
    monkeypatch.setattr("phalanx.cli.request.systems.environment_for", lambda *_: Path("python"))
    monkeypatch.setattr("phalanx.cli.verbs.run.execute_and_tell", lambda *_, **__: 0)
    answer = shell("run", "--framework", "tensorflow", script, "--data", "data")
    assert answer.code == 0
    assert ("has no prepared data set mnist" in answer.err) is not prepared


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("compare", "--systems", "phalanx,horovod", "S"), "unknown system 'horovod'"),
        (("compare", "--systems", "torch-ddp,torch-ddp", "S"), "twice"),
        (("compare", "--systems", "phalanx,tf-ps", "S"), "there is no train.keras.py"),
        (("compare", "--systems", "phalanx,tf-mwms:worker=2", "S"), "takes nothing after ':'"),
        (("compare", "--systems", "phalanx,tf-ps:worker=2", "S"), "names no ps"),
        (
            ("compare", "--systems", "phalanx,tf-ps:worker=2:ps=1", "--workers", "3", "S"),
            "--workers 3 does not match the workers of tf-ps",
        ),
        (("compare", "--systems", "phalanx", "--slow", "1,0.5", "S"), "--slow"),
        (("run", "--launcher", "local:local[2]", "S"), "'local' takes nothing after ':'"),
        (("run", "--framework", "mxnet", "S"), "unknown framework 'mxnet'"),
        (("run", "--framework", "torch", "--strategy", "async", "S"), "--strategy"),
        (("run", "--framework", "torch:worker=2", "S"), "only TensorFlow's scripts have roles"),
        (("run", "--machines", "server:m3", "S"), "'m3' is neither a machine nor a selection"),
        (("run", "--machines", "all,server:here", "S"), "leaves no machine for workers"),
        (("run", "--framework", "tensorflow:boss=1", "S"), "unknown role 'boss'"),
        (
            ("run", "--framework", "torch", "--launcher", "inprocess", "S"),
            "another framework's script",
        ),
        (
            ("run", "--framework", "tensorflow:worker=3", "--workers", "2", "S"),
            "does not match the script's roles",
        ),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(
    shell: Shell, words: tuple[str, ...], told: str
) -> None:
    script = shell.script()
    if "ps=1" in " ".join(words):
        shell.script(AS_GOOD, "train.keras.py")
    answer = shell(*(word.replace("S", script) if word[-1] == "S" else word for word in words))
    assert answer.code == 2
    assert told in answer.err and len(answer.errors) <= 2
    assert not shell.runs.exists()


def test_spark_is_one_of_the_systems_and_its_master_not_the_others(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.launch.cluster import spark_launcher

    monkeypatch.setattr(spark_launcher, "check_spark", lambda: None)
    script = shell.script()
    shell.script(AS_GOOD, "train.ddp.py")
    answer = shell(
        "compare", "--systems", "torch-ddp,phalanx,phalanx-spark", script, "--workers", "2",
        "--batch", "8,16", "--launcher", "spark:spark://h:7077", "--dry-run",
    )  # fmt: skip
    assert answer.code == 0
    found = [
        line.rpartition(", ")[2] for line in answer.out.splitlines() if ": 2 workers, " in line
    ]
    assert found == ["local", "local", "spark"] * 2
