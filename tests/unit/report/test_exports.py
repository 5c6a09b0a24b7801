"""A run's figures as TensorBoard and Prometheus read them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest
from made_runs import write_run

from phalanx.core.errors import InputError
from phalanx.observe.summary.run_records import read_run
from phalanx.observe.summary.summary import summarise
from phalanx.report.exports import prometheus_text, write_tensorboard

LINE = re.compile(r'(phalanx_\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (-?[\d.e+-]+)')


def test_tensorboard_reads_every_epoch(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    paths = write_run(tmp_path, "run", epochs=3, logged={"perplexity": 7.0})
    summary = summarise(paths)
    write_tensorboard(summary, read_run(paths), tmp_path / "board")
    events = accumulator.EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    for tag, name in (
        ("accuracy/test", "test_accuracy"), ("loss/train", "train_loss"), ("epoch/rate", "rate"),
        ("epoch/perplexity", "perplexity"),
    ):  # fmt: skip
        found = events.Scalars(tag)
        assert [one.step for one in found] == [1, 2, 3]
        assert [one.value for one in found] == pytest.approx([row[name] for row in summary.history])
    walls = [one.wall_time for one in events.Scalars("loss/train")]
    assert walls == sorted(walls) and walls[0] > read_run(paths).joined[0].wall


def test_without_tensorboard_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    paths = write_run(tmp_path, "run", epochs=1)
    with pytest.raises(InputError, match="tensorboard is not installed") as caught:
        write_tensorboard(summarise(paths), read_run(paths), tmp_path / "board")
    assert caught.value.remedy == "pip install 'phalanx-train[export]'"


def test_prometheus_gets_one_value_for_each_name_and_labels(tmp_path: Path) -> None:
    hostile = 'a"b\\c\nd\x1b'
    summary = summarise(write_run(tmp_path, "run", epochs=2, logged={hostile: 3.0}))
    summary.machines[0].name, summary.test_loss = hostile, float("nan")
    text = prometheus_text(summary)
    lines = [line for line in text.splitlines() if not line.startswith("# TYPE phalanx_")]
    found = {}
    for line in lines:
        match = LINE.fullmatch(line)
        assert match, line
        assert (match[1], match[2]) not in found
        found[match[1], match[2]] = float(match[3])
    types = re.findall(r"# TYPE (\w+) gauge", text)
    assert sorted(types) == sorted({name for name, _ in found}), "one TYPE line for each name"
    assert found["phalanx_train_loss", 'run="run"'] == summary.train_loss
    assert found["phalanx_phases_seconds", 'run="run",part="train"'] == summary.phases.train
    place = f'run="run",machine="{summary.per_worker[1].machine}",worker="1"'
    assert found["phalanx_worker_samples", place] == summary.per_worker[1].samples
    assert not [name for name, _ in found if name in ("phalanx_test_loss", "phalanx_simulated")]
    machine = msgspec.to_builtins(summary.machines[0].resources)["memory_bytes"]["max"]
    assert machine in [value for (name, _), value in found.items() if "machine_memory" in name]
