"""The table fits the terminal and marks only what is more than noise."""

from __future__ import annotations

import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from made_runs import write_run, write_study
from rich.console import Console

from phalanx.core import words
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.report.load import load_study
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
