"""Tables fit the terminal, mark only what is more than noise, and compare systems."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import write_run, write_study
from rich.console import Console

from phalanx.core import words
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.report.agreement import Agreement, agreements
from phalanx.report.load import StudyData, load_study
from phalanx.report.study_verdict import verdict_on
from phalanx.report.tables import print_table, table_lines


def make_study(home: Path, repeat: int = 1) -> RunPaths:
    names = []
    for index in range(repeat):
        for strategy, workers, compute in (
            ("single", 1, 0.008), ("allreduce", 2, 0.005), ("async", 2, 0.003),
            ("switch:at=0.5", 2, 0.004),
        ):  # fmt: skip
            name = f"{strategy.replace(':', '-')}-{index}"
            write_run(
                home,
                name,
                strategy=strategy,
                workers=workers,
                compute=compute,
                seed=index,
                noise=0.5,
            )
            names.append(name)
    return write_study(home, "study", names, repeat=repeat)


def printed(paths: RunPaths, width: int) -> str:
    text = io.StringIO()
    print_table(load_study(paths), Console(file=text, width=width))
    return text.getvalue()


def test_it_fits_eighty_columns_and_loses_nothing(tmp_path: Path) -> None:
    paths = make_study(tmp_path, repeat=3)
    text = printed(paths, 80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    study = load_study(paths)
    for line in table_lines(study):
        assert line.name in text
        for cell in line.cells:
            assert cell.text in text and cell.note in text


def test_labels_name_the_batch_only_where_it_varies(tmp_path: Path) -> None:
    for name, strategy, batch in (
        ("a", "allreduce", 128), ("b", "allreduce", 256), ("c", "async", 128),
    ):  # fmt: skip
        write_run(tmp_path, name, strategy=strategy, batch=batch)
    study = load_study(write_study(tmp_path, "study", ["a", "b", "c"]))
    assert [g.label for g in study.groups] == [
        "allreduce, batch 128", "allreduce, batch 256", "async",
    ]  # fmt: skip


def test_best_is_marked_unless_all_are(tmp_path: Path) -> None:
    study = load_study(make_study(tmp_path))
    lines = {line.name: line for line in table_lines(study)}
    assert [cell.best for cell in lines["training time"].cells] == [False, False, True, False]
    assert not any(cell.best for cell in lines["test accuracy"].cells)


@given(st.floats(0, 1e6))
def test_seconds_are_never_rounded_beyond_reading(value: float) -> None:
    text = words.seconds(value)
    assert text.endswith((" s", " ms", " h"))
    assert " 60 s" not in text and ":60" not in text


def test_a_shared_unit_is_said_once() -> None:
    assert words.span("1.0 s", "2.0 s") == "1.0 to 2.0 s"
    assert words.span("900 ms", "1.10 s") == "900 ms to 1.10 s"
    assert words.span("1 min 02 s", "1 min 03 s") == "1 min 02 s to 1 min 03 s"
    assert words.span("0.10", "0.20") == "0.10 to 0.20"


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
