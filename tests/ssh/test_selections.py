"""Who takes part is chosen by one word, and nobody else is started: the machines say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_machines import MakeLab, lab
from reference_pool import MEMBERS, write_pool
from ssh_runs import Bench, holds, processes

from phalanx.lab.lab import Lab

pytestmark = pytest.mark.slow
__all__ = ["lab"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_cnn.py"
LOADS = '    train, test = load("mnist")\n'
FEWER = "    train, test = ((x[:6400], y[:6400]) for x, y in (train, test))\n"
"""A tenth of the digits: five machines share the cores of one host here."""
WORKER = "phalanx.launch.worker.bootstrap"


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(5)


@pytest.fixture(scope="module")
def bench(machines: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One for all tests: the last of them reports on the runs of the others."""
    bench = Bench(machines, tmp_path_factory.mktemp("selections"))
    write_pool(machines, bench.pool)
    assert LOADS in EXAMPLE.read_text()
    script = EXAMPLE.read_text().replace(LOADS, LOADS + FEWER)
    (bench.project / EXAMPLE.name).write_text(script)
    shutil.copy(EXAMPLE.with_name("published.py"), bench.project)
    yield bench
    bench.close()


def working(lab: Lab) -> dict[str, int]:
    """How many workers each machine's own table of processes shows."""
    tables = {m.name: processes(lab, m.name).values() for m in lab.machines}
    return {
        name: count
        for name, table in tables.items()
        if (count := sum(WORKER in words for words in table))
    }


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("selection", MEMBERS)
def test_a_selection_starts_exactly_its_machines(bench: Bench, selection: str) -> None:
    wanted = dict.fromkeys(MEMBERS[selection], 1)
    common = ["--pool", str(bench.pool), "--batch", str(64 * len(wanted)), "--name", selection]
    running = bench.start("run", EXAMPLE.name, "--machines", selection, *common)
    holds(lambda: working(bench.lab) == wanted or running.process.poll() is not None, 240)
    running.until(r"epoch\s+1/3", 600)
    assert working(bench.lab) == wanted
    touched = [m.name for m in bench.lab.machines if processes(bench.lab, m.name)]
    assert touched == MEMBERS[selection], "not even an agent on the others"
    ended = running.end(600)
    assert ended.code == 0, ended.text
    summary = bench.summary()
    assert [m["name"] for m in summary["machines"]] == MEMBERS[selection]
    assert summary["batch"] == 64 * len(wanted)
    losses = [epoch["train_loss"] for epoch in summary["history"]]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    print(f"\n{selection}: test accuracy {summary['test_accuracy']:.4f}, "
          f"{summary['samples_per_second']:.0f} samples/s, {summary['seconds']:.0f} s")  # fmt: skip


def test_one_report_on_all_of_them(bench: Bench) -> None:
    runs = sorted(path.name for path in bench.runs.iterdir() if (path / "plan.json").exists())
    assert len(runs) == len(MEMBERS)
    ended = bench.do("report", *runs, "--json")
    assert ended.code == 0, ended.text
    page = Path(json.loads(ended.text.splitlines()[-1])["report"]).read_text()
    for names in MEMBERS.values():
        assert f"on {', '.join(names)}" in page
