"""``resume`` and ``export``: what a run has left, used again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from cli_support import Shell
from made_checkpoints import damage, mark_best, write_checkpoint
from made_runs import write_run, write_study
from safetensors.torch import load_file, save_file

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.run_folder.trust import write_launch
from phalanx.core.settings import RunSettings
from phalanx.launch.launcher import Launch
from phalanx.observe.summary.run_lock import hold
from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest

RUN = "20250102-000000-exp-allreduce"


@pytest.fixture
def paths(shell: Shell) -> RunPaths:
    """A run that was lost after its second checkpoint, and its script."""
    paths = write_run(shell.runs, RUN, script=shell.script(), status=None)
    settings = RunSettings(
        strategy="allreduce", batch=128, seed=7, checkpoint_epochs=1, slow=[1.0, 0.5], epochs=3
    )
    launch = Launch.from_json(paths.launch.read_bytes())
    changed = msgspec.structs.replace(launch, settings=settings, arguments=["deep"])
    write_launch(paths, changed.to_json())
    paths.source.mkdir()
    (paths.source / "train.py").write_bytes((shell.folder / "train.py").read_bytes())
    for number in (1, 2):
        write_checkpoint(paths, number, value=float(number))
    return paths


def test_resume_is_a_new_run_with_the_same_settings(shell: Shell, paths: RunPaths) -> None:
    before = sorted(paths.folder.rglob("*"))
    answer = shell("resume", "--json")

    assert answer.code == 0, answer.err
    assert answer.json["run"].endswith("-exp-allreduce-resumed")
    assert answer.json["status"] == "done"
    assert sorted(paths.folder.rglob("*")) == before, "the old run stays as it was"
    launch = Launch.from_json(RunPaths(shell.runs / answer.json["run"]).launch.read_bytes())
    assert launch.resumes == f"{RUN}, checkpoint 2"
    assert launch.settings.resume == str((paths.checkpoints / "000002").resolve())
    assert launch.arguments == ["deep"]
    assert (launch.settings.seed, launch.settings.batch) == (7, 128)
    assert (launch.settings.slow, launch.settings.checkpoint_epochs) == ([1.0, 0.5], 1)
    assert len(launch.workers) == 2
    assert "warning" not in answer.err


def test_another_strategy_workers_epochs_and_checkpoint(shell: Shell, paths: RunPaths) -> None:
    answer = shell(
        "resume", "exp", "--strategy", "ssp:bound=2:shares=equal", "--workers", "3",
        "--epochs", "9",
        "--batch", "96", "--checkpoint", "1", "--checkpoint-every", "5min,keep=1",
        "--rate", "1gbit", "--launcher", "inprocess", "--dry-run", "--json",
    )  # fmt: skip

    assert answer.code == 0, answer.err
    (launch,) = answer.json["launches"]
    settings = launch["settings"]
    assert launch["run"] == "TIME-exp-ssp-bound-2-shares-equal-resumed"
    assert launch["resumes"] == f"{RUN}, checkpoint 1"
    assert launch["launcher"] == "inprocess"
    assert launch["plan"]["workers"] == len(launch["workers"]) == 3
    assert (settings["strategy"], settings["epochs"]) == ("ssp:bound=2:shares=equal", 9)
    assert settings["batch"] == 96
    assert settings["slow"] == [1.0, 0.5, 1.0]
    assert (settings["checkpoint_epochs"], settings["checkpoint_minutes"]) == (0, 5.0)
    assert (settings["keep"], settings["rate"], settings["balance"]) == (1, 1e9, "off")
    assert settings["resume"].endswith("/checkpoints/000001")
    assert [run.name for run in shell.runs.iterdir()] == [RUN]


def test_a_cluster_stays_unless_another_launcher_is_asked_for(
    shell: Shell, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.launch.cluster.spark_launcher.check_spark", lambda: None)
    launch = Launch.from_json(paths.launch.read_bytes())
    by_spark = msgspec.structs.replace(launch, launcher="spark", cluster="local[2]")
    write_launch(paths, by_spark.to_json())
    words = ("resume", "--strategy", "bsp", "--dry-run", "--json")
    for more, wanted in (
        ((), ("spark", "local[2]")),
        (("--launcher", "spark"), ("spark", "local[2]")),
        (("--launcher", "spark:local[9]"), ("spark", "local[9]")),
        (("--launcher", "local"), ("local", "")),
    ):
        (found,) = shell(*words, *more).json["launches"]
        assert (found["launcher"], found["cluster"]) == wanted


def test_a_damaged_checkpoint_is_named_and_skipped(shell: Shell, paths: RunPaths) -> None:
    damage(paths, 2)
    answer = shell("resume", "--dry-run", "--json")

    assert "warning: checkpoints/000002: shared.safetensors is damaged" in answer.err
    assert answer.json["launches"][0]["resumes"] == f"{RUN}, checkpoint 1"
    assert "damaged" in shell("resume", "--checkpoint", "2").errors[0]


def test_a_changed_script_is_a_warning(shell: Shell, paths: RunPaths) -> None:
    (paths.source / "model.py").write_text("depth = 3\n")
    with (shell.folder / "train.py").open("a") as file:
        file.write("# tuned\n")
    answer = shell("resume", "--dry-run")

    assert answer.code == 0
    assert "warning: train.py has changed since the run began" in answer.err
    assert "warning: model.py was removed since the run began" in answer.err


def test_what_a_switch_by_hand_changed_stays_changed(shell: Shell, paths: RunPaths) -> None:
    file = paths.checkpoints / "000002" / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"strategy":"allreduce"', b'"strategy":"async"'))
    (found,) = shell("resume", "--dry-run", "--json").json["launches"]
    assert found["settings"]["strategy"] == "async"
    assert found["run"] == "TIME-exp-async-resumed"
    (other,) = shell("resume", "--strategy", "bsp", "--dry-run", "--json").json["launches"]
    assert other["settings"]["strategy"] == "bsp"


def test_too_few_epochs(shell: Shell, paths: RunPaths) -> None:
    told = refused(shell, "resume", "--epochs", "2")
    assert "--epochs 2 leaves nothing to train: checkpoint 2 is in epoch 3, 0 %" in told
    assert shell("resume", "--epochs", "3", "--dry-run").code == 0


def refused(shell: Shell, *words: str, made: int = 0) -> str:
    answer = shell(*words)
    assert answer.code == 2
    assert len(answer.errors) <= 2
    assert len([run.name for run in shell.runs.iterdir() if "resumed" in run.name]) == made
    return answer.err


def test_what_cannot_be_gone_on_with(shell: Shell, paths: RunPaths) -> None:
    with hold(paths):
        assert "is still running" in refused(shell, "resume")
    assert "no checkpoint 7" in refused(shell, "resume", "--checkpoint", "7")
    assert "--workers must be at least 1" in refused(shell, "resume", "--workers", "0")
    assert "is too small for" in refused(shell, "resume", "--batch", "1")
    assert "2 speeds for 1 worker" in refused(shell, "resume", "--slow", "1,1", "--workers", "1")
    (shell.folder / "train.py").unlink()
    told = refused(shell, "resume")
    assert "there is no script 'train.py'" in told
    assert str(paths.source / "train.py") in told


def test_no_checkpoint_a_study_or_a_broken_launch(shell: Shell, paths: RunPaths) -> None:
    write_run(shell.runs, "20250103-000000-bare", script="train.py", status="stopped")
    assert "no checkpoint" in refused(shell, "resume", "bare")
    write_study(shell.runs, "20250104-000000-study", [RUN])
    told = refused(shell, "resume", "study")
    assert "is a study" in told
    assert RUN in told
    paths.launch.write_text("{}")
    assert "cannot read how" in refused(shell, "resume", RUN)


def test_a_run_that_is_done_needs_more_epochs(shell: Shell, paths: RunPaths) -> None:
    paths.summary.write_text(json.dumps({"run": RUN, "status": "done"}))
    assert shell("resume", "--dry-run").code == 0  # its model is missing

    paths.model.touch()
    assert "--epochs" in refused(shell, "resume")
    assert shell("resume", "--epochs", "5", "--dry-run").code == 0


def test_export_of_a_finished_run(shell: Shell, paths: RunPaths) -> None:
    save_file({"w": torch.ones(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}, paths.model)
    save_file({"w": torch.zeros(2, 3)}, paths.best)
    answer = shell("export", "--json")

    file = Path(answer.json["file"])
    assert file.name == f"{RUN}.safetensors"
    assert (answer.json["tensors"], answer.json["parameters"]) == (2, 9)
    assert file.read_bytes() == paths.model.read_bytes()
    best = shell("export", "--best", "--output", "best.safetensors")
    assert "best weights" in best.out
    assert load_file(shell.folder / "best.safetensors")["w"].sum() == 0


def test_export_of_figures(shell: Shell, paths: RunPaths) -> None:
    told = shell("export", "--prometheus", "-").out
    assert told.startswith(f'# TYPE phalanx_info gauge\nphalanx_info{{run="{RUN}"')
    assert shell("export", "--prometheus", "p.prom", "--json").json["prometheus"] == "p.prom"
    assert (shell.folder / "p.prom").read_text() == told
    for words in (["--best"], ["--output", "w"], ["--checkpoint", "1"]):
        assert "one after the other" in refused(shell, "export", "--prometheus", "-", *words)
    assert "Name a file" in refused(shell, "export", "--prometheus", "-", "--json")
    assert "cannot write" in refused(shell, "export", "--prometheus", "none/p.prom")

    pytest.importorskip("tensorboard")
    assert shell("export", "--tensorboard", "board").code == 0
    assert "--force" in refused(shell, "export", "--tensorboard", "board")
    assert shell("export", "--tensorboard", "board", "--force").code == 0
    assert len(list((shell.folder / "board" / RUN).iterdir())) == 1


def test_export_from_a_checkpoint(shell: Shell, paths: RunPaths) -> None:
    damage(paths, 2)
    answer = shell("export", "--output", "w.safetensors")

    assert answer.code == 0
    assert "checkpoint 1 of" in answer.out
    assert "2 tensors, 7 values" in answer.out
    assert "000002" in answer.err
    found = load_file(shell.folder / "w.safetensors")
    assert torch.equal(found["layer.weight"], torch.ones(2, 3))
    assert set(found) == {"layer.weight", "layer.scale"}


def test_export_of_a_numbered_and_of_the_best_checkpoint(shell: Shell, paths: RunPaths) -> None:
    mark_best(paths, 1)
    for words, value in ((["--best"], 1.0), (["--checkpoint", "2"], 2.0)):
        assert shell("export", *words, "--output", "w.safetensors", "--force").code == 0
        assert load_file(shell.folder / "w.safetensors")["layer.weight"][0, 0] == value


def test_export_never_overwrites_unasked(shell: Shell, paths: RunPaths) -> None:
    target = shell.folder / "mine.safetensors"
    target.write_text("precious")
    assert "--force" in refused(shell, "export", "--output", "mine.safetensors")
    assert target.read_text() == "precious"
    link = shell.folder / "link.safetensors"
    link.symlink_to(shell.folder / "nowhere")
    assert "--force" in refused(shell, "export", "--output", "link.safetensors")
    assert shell("export", "--output", "mine.safetensors", "--force").code == 0
    assert "layer.weight" in load_file(target)
    assert [f.name for f in shell.folder.glob(".*")] == []


def test_export_again_when_the_run_has_removed_the_checkpoint_meanwhile(
    shell: Shell, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.train.checkpoint import tensor_files as export

    whole = export.state_dict

    def first_too_late(folder: Path, manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
        if manifest.number == 2:
            write_checkpoint(paths, 3, value=3.0)
            shutil.rmtree(folder)
        return whole(folder, manifest)

    monkeypatch.setattr(export, "state_dict", first_too_late)
    answer = shell("export", "--output", "w.safetensors")
    assert answer.code == 0, answer.err
    assert "checkpoint 3 of" in answer.out


def test_export_that_cannot_be(shell: Shell, paths: RunPaths) -> None:
    assert "kept no best weights" in refused(shell, "export", "--best")
    assert "is a folder" in refused(shell, "export", "--output", ".")
    assert "no folder" in refused(shell, "export", "--output", "none/w.safetensors")
    assert "no checkpoint 5" in refused(shell, "export", "--checkpoint", "5")
    paths.model.write_text("not weights at all")
    assert "damaged" in refused(shell, "export", "--output", "w.safetensors")
    assert not list(shell.folder.glob("*.safetensors")) + list(shell.folder.glob(".*.part"))


def test_a_resumed_run_without_a_checkpoint_goes_on_from_where_it_began(
    shell: Shell, paths: RunPaths
) -> None:
    first = RunPaths(shell.runs / shell("resume", "--checkpoint", "1", "--json").json["run"])
    answer = shell("resume", first.id, "--epochs", "5", "--dry-run", "--json")
    assert "has no checkpoint of its own" in answer.err
    assert answer.json["launches"][0]["resumes"] == f"{RUN}, checkpoint 1"
    listed = {run["run"]: run["resumes"] for run in shell("runs", "--json").json["runs"]}
    assert listed == {RUN: None, first.id: f"{RUN}, checkpoint 1"}
    assert "resumed from" in shell("runs").out
    damage(paths, 1)
    assert "no checkpoint to resume from" in refused(
        shell, "resume", first.id, "--epochs", "5", made=1
    )
