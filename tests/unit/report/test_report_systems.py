"""Systems in one study: labels, the check of their losses, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_runs import write_run, write_study

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.report.agreement import Agreement, agreements
from phalanx.report.load import StudyData, load_study
from phalanx.report.study_verdict import verdict_on
from phalanx.report.tables import table_lines


def write_system(home: Path, system: str, *, name: str | None = None, **changes: Any) -> None:
    paths: RunPaths = write_run(home, name or system, **changes)
    launch = msgspec.json.decode(paths.launch.read_bytes())
    launch["system"] = system
    launch["settings"]["strategy"] = "allreduce" if system == "phalanx" else system
    paths.launch.write_bytes(msgspec.json.encode(launch))


def study_of(home: Path, **accuracies: float) -> StudyData:
    names = [name.replace("_", "-") for name in accuracies]
    for name, accuracy in zip(names, accuracies.values(), strict=True):
        write_system(home, name, accuracy=accuracy, logged={"test_loss": 10 * (1 - accuracy)})
    return load_study(write_study(home, "study", names))


def test_ours_is_named_beside_others_and_only_there(tmp_path: Path) -> None:
    study = study_of(tmp_path / "a", phalanx=0.97, tf_ps=0.97)
    assert [group.label for group in study.groups] == ["phalanx allreduce", "tf-ps"]
    alone = study_of(tmp_path / "b", phalanx=0.97)
    assert [group.label for group in alone.groups] == ["allreduce"]
    assert "losses" not in {line.name for line in table_lines(alone)}


@pytest.mark.parametrize(
    ("accuracy", "found"),
    [
        (0.97, Agreement.AGREES),
        (0.962, Agreement.AGREES),  # within a point; the loss is 27 % larger
        (0.959, Agreement.DIFFERS),
        (0.5, Agreement.DIFFERS),
    ],
)
def test_losses_agree_within_the_band(tmp_path: Path, accuracy: float, found: Agreement) -> None:
    study = study_of(tmp_path, phalanx=0.97, tf_ps=accuracy)
    assert agreements(study.groups) == [Agreement.REFERENCE, found]


def test_a_row_that_differs_gets_no_ratio_no_mark_and_no_verdict(tmp_path: Path) -> None:
    write_system(tmp_path, "phalanx", compute=0.02)
    write_system(tmp_path, "torch-ddp", compute=0.04)
    write_system(tmp_path, "tf-ps", compute=0.001, accuracy=0.4, logged={"test_loss": 6.0})
    study = load_study(write_study(tmp_path, "study", ["phalanx", "torch-ddp", "tf-ps"]))
    lines = {line.name: line.cells for line in table_lines(study)}
    ratios = [cell.text for cell in lines["time ÷ phalanx allreduce"]]
    assert ratios[0] == "1.00" and float(ratios[1]) > 1 and ratios[2] == "losses differ"
    assert [cell.best for cell in lines["training time"]] == [True, False, False]
    verdict = verdict_on(study)
    assert verdict.fastest == ("phalanx allreduce",)
    assert any("tf-ps: its losses differ" in remark for remark in verdict.remarks)


def test_systems_are_compared_with_ours_of_the_same_batch(tmp_path: Path) -> None:
    names = []
    for batch, accuracy in ((96, 0.98), (384, 0.9)):
        for system in ("phalanx", "torch-ddp"):
            names.append(f"{system}-{batch}")
            figures = {"accuracy": accuracy, "logged": {"test_loss": 10 * (1 - accuracy)}}
            write_system(tmp_path, system, name=names[-1], batch=batch, **figures)
    study = load_study(write_study(tmp_path, "study", names))
    reference, agrees = Agreement.REFERENCE, Agreement.AGREES
    assert agreements(study.groups) == [reference, agrees, reference, agrees]
    lines = {line.name: line.cells for line in table_lines(study)}
    ratios = [cell.text for cell in lines["time ÷ phalanx, same batch"]]
    assert ratios[0] == ratios[2] == "1.00"
