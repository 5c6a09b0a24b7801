"""Several machines in the summary and the report: one row each, and what they were worth."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
import pytest
from made_runs import write_run, write_study

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.resources import network_bytes
from phalanx.observe.summary.summary import Summary, summarise
from phalanx.report.findings import findings
from phalanx.report.load import load_study
from phalanx.report.plots.machine_plot import machine_names
from phalanx.report.sections import Section
from phalanx.report.sections.machines import machines as section

FIVE = ("alpha", "beta", "gamma", "delta", "epsilon")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    return write_run(
        tmp_path_factory.mktemp("runs"), "five", machines=FIVE, workers=5, steps=20,
        compute=0.02, slow={4: 4.0}, gpus=("delta",),
    )  # fmt: skip


def test_each_machine_has_its_own_figures(run: RunPaths) -> None:
    summary = summarise(run)
    assert [machine.name for machine in summary.machines] == list(FIVE)
    for machine in summary.machines:
        assert machine.contribution == 3 * 20 * (128 // 5)
        assert machine.network_bytes is not None
        assert machine.network_bytes % 3_000_000 == 0
        assert machine.resources.disk_bytes_per_second.max == 2e7
        assert (machine.resources.gpu_percent.avg is not None) == (machine.name == "delta")
    assert msgspec.json.decode(summary.to_json(), type=Summary) == summary


def test_what_they_are_worth_is_in_the_summary_and_the_findings(run: RunPaths) -> None:
    summary = summarise(run)
    assert list(summary.worth.machines) == list(FIVE)
    assert summary.worth.waiting.name == "epsilon"
    told = next(sentence for sentence in findings(summary) if sentence.startswith("Worth it?"))
    assert told.startswith("Worth it? epsilon is 4.")
    assert "(--machines alpha,beta,gamma,delta: about" in told


@pytest.fixture(scope="module")
def made(run: RunPaths) -> Section:
    found = section(load_study(run))
    assert found is not None
    return found


def test_a_column_per_machine_and_only_figures_that_somebody_has(made: Section) -> None:
    work, whole, training = made.grids
    assert work.head == ("in all", *FIVE)
    assert whole.head[1:] == training.head[1:] == ("cluster", *FIVE)
    rows = {row[0]: row[1:] for row in whole.rows}
    assert {"CPU user", "CPU system", "network in", "network out", "GPU"} <= rows.keys()
    assert "throttled" not in rows, "no machine tells it"
    assert (rows["network in"][0].text, rows["network out"][0].note) == ("5 MB/s", "10 to 10 MB/s")
    assert made.lines
    assert made.lines[0].startswith("Worth it?")
    ((name, text),) = made.files
    assert name == "machines.csv"
    readings = list(csv.DictReader(io.StringIO(text)))
    assert {row["machine"] for row in readings} == set(FIVE)
    assert {row["training"] for row in readings} == {"0", "1"}
    assert float(readings[5]["cpu_user"]) > float(readings[5]["cpu_system"]) > 0


def test_any_number_of_machines_is_in_the_figures(tmp_path: Path) -> None:
    many = tuple(f"m{number}" for number in range(10))
    write_run(tmp_path, "a", machines=many, workers=10, epochs=1)
    write_run(tmp_path, "b", machines=many[:2], workers=2, epochs=1, strategy="async")
    study = load_study(write_study(tmp_path, "s", ["a", "b"]))
    assert machine_names(study) == list(many)
    found = section(study)
    assert found is not None
    use, heat = (plot.figure for plot in found.plots)
    assert {axes.get_title(loc="left") for axes in use.axes} >= {"CPU", "memory", "network"}
    assert all(axes.get_ylabel() and axes.get_xlabel() for axes in use.axes)
    strips = [axes for axes in heat.axes if axes.images]
    assert [axes.images[0].get_array().shape[0] for axes in strips] == [10, 2]
    names = [row[0] for row in found.grids[1].rows]
    assert names[:2] == ["allreduce · cluster", "allreduce · m0"]
    assert names[-2:] == ["async · m0", "async · m1"]


def sample(**values: float | None) -> MachineSample:
    return MachineSample(
        time=0.0, cpu_percent=50.0, memory_bytes=10, network_bytes_per_second=1.0,
        workers_cpu_percent=0.0, workers_memory_bytes=0, **values,
    )  # fmt: skip


def test_a_counter_that_begins_anew_does_not_count_backwards() -> None:
    sent = (100, 150, 5, 25)
    readings = [sample(network_sent=value, network_received=0) for value in sent]
    assert network_bytes(readings) == 50 + 20
    assert network_bytes([sample(), sample()]) is None
