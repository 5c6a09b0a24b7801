"""Printed figures become events; whatever else is printed does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.figure_lines import LONGEST, FigureLines, Told, read_line
from phalanx.observe.events.timeline import RankLog, read_ranks
from phalanx.observe.summary.summary import summarise

TOLD = Told(machines=["a", "b"], workers=2, system="tf-mwms", seed=3, threads=[1, 2])


def read(folder: Path, *texts: str, status: str = "done") -> tuple[RunPaths, list[RankLog]]:
    paths = RunPaths(folder / "run").make()
    lines = FigureLines(paths, TOLD)
    with paths.log_of(0).open("a") as log:
        for text in texts:
            log.write(text)
            log.flush()
            lines.poll()
    lines.finish(status)
    return paths, read_ranks(paths)


def test_a_whole_story_line_by_line_as_it_grows(tmp_path: Path) -> None:
    _, ranks = read(
        tmp_path,
        'noise\nphalanx-figures {"parameters": 10, "batch": 4, ',
        '"workers": 2, "samples": 8, "epochs": 2, "read_seconds": 3, "prepare_seconds": 0.5}\n',
        'phalanx-figures {"epoch": 0, "seconds": 1.5, "samples": 8, "train_loss": 0.9,'
        ' "test_accuracy": 0.5, "perplexity": 3}\n',
        'phalanx-figures {"epoch": 1, "seconds": 0.5, "samples": 8, "train_loss": NaN,'
        ' "evaluate_seconds": 0.25}',
    )
    first, second = ranks
    assert first.joined is not None and second.joined is not None
    assert (first.joined.parameters, first.joined.machine, second.joined.machine) == (10, "a", "b")
    assert (first.plans[0].epochs, first.plans[0].batch, first.plans[0].samples) == (2, 4, 8)
    assert [(done.epoch, done.seconds, done.train_loss) for done in first.epochs] == [
        (0, 1.5, 0.9), (1, 0.5, None),
    ]  # fmt: skip
    assert first.logged[0].values == {"test_accuracy": 0.5, "perplexity": 3.0}
    assert first.phases["train"] == 2.0 and first.phases["evaluate"] == 0.25
    assert first.phases["read"] == 3.0 and first.phases["prepare"] == 0.5
    assert first.finished is not None and second.finished is not None and not second.epochs


def test_the_summary_of_it(tmp_path: Path) -> None:
    paths, _ = read(
        tmp_path,
        'phalanx-figures {"parameters": 10, "batch": 4, "samples": 8}\n',
        'phalanx-figures {"epoch": 0, "seconds": 4, "samples": 8, "test_loss": 0.25}\n',
    )
    paths.launch.write_text('{"system": "tf-mwms", "settings": {"strategy": "tf-mwms"}}')
    summary = summarise(paths)
    assert (summary.system, summary.strategy, summary.status) == ("tf-mwms", "tf-mwms", "done")
    assert (summary.batch, summary.workers, summary.test_loss) == (4, 2, 0.25)
    assert summary.samples_per_second == 2.0


def test_chief_and_servers_are_no_workers(tmp_path: Path) -> None:
    paths, _ = read(tmp_path, 'phalanx-figures {"epoch": 0, "seconds": 4, "samples": 8}\n')
    slots = [{"name": name, "slots": [{"rank": rank}]} for rank, name in enumerate("abcd")]
    roles = [
        {"rank": rank, "machine": name, "role": role}
        for rank, name, role in zip(range(4), "abcd", ("chief", *["worker"] * 2, "ps"), strict=True)
    ]
    paths.plan.write_text(json.dumps({"workers": 4, "machines": slots}))
    paths.launch.write_text(json.dumps({"system": "tf-ps", "workers": roles}))
    summary = summarise(paths)
    assert {one.name: one.workers for one in summary.machines} == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert [worker.rank for worker in summary.per_worker] == [1], "two logs were written"


def test_the_first_epoch_is_training_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, *[110.0] * 9])
    monkeypatch.setattr("phalanx.observe.events.figure_lines.time.monotonic", lambda: next(clock))
    paths, ranks = read(
        tmp_path,
        'phalanx-figures {"parameters": 10, "since_seconds": 6}\n'
        'phalanx-figures {"epoch": 0, "seconds": 5, "samples": 8}\n',
    )
    assert (ranks[0].phases["start"], ranks[0].phases["train"]) == (4.0, 5.0)
    assert summarise(paths).history[0]["seconds"] == 6.0


@pytest.mark.parametrize(
    "line",
    [
        b"phalanx-figures",
        b"phalanx-figures []",
        b'phalanx-figures {"epoch": 0',
        b' phalanx-figures {"epoch": 0}',
        b"phalanx-figures " + b"[" * 30_000,
        b'phalanx-figures {"a": ' + b"1" * LONGEST + b"}",
        b"phalanx-figures {" + b", ".join(b'"n%d": 1' % n for n in range(100)) + b"}",
    ],
)
def test_what_is_no_line_of_figures(line: bytes) -> None:
    assert read_line(line) is None


def test_what_is_no_number_is_left_out_and_what_is_not_finite_is_unknown() -> None:
    line = b'phalanx-figures {"a": "x", "b": true, "c": [1], "d": Infinity, "e": null, "f": 2}'
    assert read_line(line) == {"d": None, "e": None, "f": 2.0}


@given(st.binary(max_size=200))
def test_no_line_breaks_it(text: bytes) -> None:
    read_line(b"phalanx-figures " + text)
    read_line(text)


def test_a_negative_or_huge_epoch_does_not_break_the_run(tmp_path: Path) -> None:
    _, ranks = read(
        tmp_path,
        'phalanx-figures {"epoch": -3, "seconds": -1, "samples": -5}\n'
        'phalanx-figures {"epoch": 1e300, "samples": 1e300}\n'
        f'phalanx-figures {{"epoch": 0, "samples": {10**400}}}\n',
    )
    assert all(done.samples >= 0 and done.seconds >= 0 for done in ranks[0].epochs)


def test_a_link_in_place_of_the_events_is_not_followed(tmp_path: Path) -> None:
    paths, outside = RunPaths(tmp_path / "run").make(), tmp_path / "outside"
    outside.write_text("")
    paths.events_of(0).symlink_to(outside)
    FigureLines(paths, TOLD).finish("done")
    assert outside.read_text() == ""
