"""What stands out about a run, said so that it agrees with the numbers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from made_runs import write_run, write_study
from rich.console import Console

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev
from phalanx.observe.speedup.straggler import Straggler
from phalanx.observe.summary.summary import summarise
from phalanx.observe.summary.summary_fields import (
    BalanceSummary,
    MachineSummary,
    Summary,
    SwitchSummary,
)
from phalanx.report.findings import (
    balance_sentence,
    findings,
    shares,
    shown_switches,
    straggler_sentence,
    switch_sentence,
)
from phalanx.report.html import write_report
from phalanx.report.load import load_study
from phalanx.report.study_verdict import verdict_on
from phalanx.report.tables import print_table, table_lines, uncoded

SLOWED = {"slow": [1.0, 0.25], "rate": 1e8}


def late(waiting: str, **changes: Any) -> Summary:
    values: dict[str, Any] = {
        "rank": 2, "share": 0.9, "steps": 40, "seconds": 12.0, "cost": 0.41, "slower": 4.0,
        "waiting": waiting,
    }  # fmt: skip
    return Summary(run="r", status="done", straggler=Straggler(**(values | changes)))


def test_reports_that_did_not_arrive_are_named(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "r")
    assert summarise(paths).unreported == []
    events = paths.events_of(1).read_text().splitlines()
    kept = [line for line in events if '"finished"' not in line]
    paths.events_of(1).write_text("\n".join(kept) + "\n")
    summary = summarise(paths, status="done")
    assert summary.unreported == [1]
    assert any("last reports of worker 1" in sentence for sentence in findings(summary))


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        ("lockstep", "the others waited for it: 12.0 s, 41 % of their time."),
        ("bounded", "workers that ran too far ahead waited for it (12.0 s, 41 % of their time)."),
        ("nobody", "so it costs the others nothing."),
    ],
)
def test_the_straggler_is_named_with_its_cost(waiting: str, told: str) -> None:
    sentence = straggler_sentence(late(waiting))
    assert sentence is not None and sentence.endswith(told)
    assert "worker 2" in sentence and "4.0 times as long per sample" in sentence
    assert "last in 90 % of 40 joint steps" in sentence
    assert findings(Summary(run="r", status="done")) == []


def test_balance_says_what_it_changed() -> None:
    balance = BalanceSummary(
        changes=3, first_epoch=0, last_epoch=1, rate_before=100.0, rate_after=250.0
    )
    summary = Summary(run="r", status="done", shares=[0.8, 0.2], balance=balance)
    assert balance_sentence(summary) == (
        "Balance: shares 80 : 20 by measured speed, changed 3 times, last in epoch 2; "
        "100 samples/s in steps before, 250 after."
    )
    assert shares([0.996, 0.004]) == "100 : 0.4"
    balance.refused = 2
    told = balance_sentence(summary)
    assert told is not None and told.endswith(
        "; other shares were tried 2 times and reverted, because they were not clearly faster."
    )


def many_switches(count: int) -> list[SwitchSummary]:
    names = ("allreduce", "async")
    return [
        SwitchSummary(
            at_epoch=i / 10, before=names[i % 2], after=names[1 - i % 2], pause_seconds=0.001 * i
        )
        for i in range(count)
    ]


def test_many_switches_stay_readable(tmp_path: Path) -> None:
    switches = many_switches(40)
    shown, hidden = shown_switches(switches)
    assert shown == [*switches[:3], *switches[-3:]] and hidden == 34
    assert shown_switches(switches[:6]) == (switches[:6], 0)
    paths = write_run(tmp_path, "run", strategy="switch:on=straggler")
    summary = summarise(paths)
    summary.switches = switches
    summary.samples_by_phase = {"allreduce": 300, "async": 100}
    told = "Switched 40 times, paused 39 ms at most: 75 % under allreduce and 25 % under async."
    assert switch_sentence(summary) == told
    paths.summary.write_text(summary.to_json())
    page = write_report(paths).read_text()
    assert "34 more" in page and page.count("async</td>") < 10
    assert "75\u00a0% under allreduce" in page


def test_emulation_is_labelled_everywhere(tmp_path: Path) -> None:
    write_run(tmp_path, "one", workers=1, strategy="single")
    write_run(tmp_path, "two", settings=SLOWED)
    study = write_study(tmp_path, "study", ["one", "two"])
    data = load_study(study)
    assert [group.label for group in data.groups] == ["single", "allreduce (emulated)"]
    verdict = verdict_on(data)
    assert "(emulated)" in verdict.sentence
    assert any(r.startswith("Emulated: speeds 1, 0.25; 100 Mbit/s.") for r in verdict.remarks)
    text = io.StringIO()
    print_table(data, Console(file=text, width=120))
    assert "speeds 1, 0.25; 100 Mbit/s" in text.getvalue()
    page = write_report(study).read_text()
    assert "(emulated) · Phalanx</title>" in page
    assert "emulated: speeds 1, 0.25; 100\u00a0Mbit/s" in page
    assert "allreduce (emulated)" in (study.figures / "time-split.svg").read_text()
    alone = verdict_on(load_study(RunPaths(tmp_path / "two")))
    assert alone.sentence.startswith("allreduce (emulated) with 2 workers")


def test_an_emulated_run_is_no_repeat_of_a_real_one(tmp_path: Path) -> None:
    write_run(tmp_path, "real")
    write_run(tmp_path, "slow", settings=SLOWED)
    write_run(tmp_path, "slower", settings={"slow": [1.0, 0.1]})
    study = load_study(write_study(tmp_path, "study", ["real", "slow", "slower"]))
    assert [group.label for group in study.groups] == [
        "allreduce",
        "allreduce (emulated: speeds 1, 0.25; 100 Mbit/s)",
        "allreduce (emulated: speeds 1, 0.1)",
    ]


def test_sent_bytes_are_compared_with_the_plain_strategy(tmp_path: Path) -> None:
    write_run(tmp_path, "plain")
    coded = write_run(tmp_path, "coded", strategy="allreduce+int8")
    for rank in range(2):
        events = list(ev.read_events(coded.events_of(rank)))
        kept = [e for e in events if not isinstance(e, ev.Finished)]
        last = ev.Finished(time=1e4, rank=rank, status="done", bytes_sent=250_000, peak_memory=1)
        coded.events_of(rank).write_bytes(b"".join(map(ev.encode, [*kept, last])))
    study = load_study(write_study(tmp_path, "study", ["plain", "coded"]))
    (line,) = [line for line in table_lines(study) if line.name == "sent per step"]
    assert [cell.note for cell in line.cells] == ["", "25 % of uncompressed"]
    assert uncoded("allreduce+int8@0.5/async+topk:ratio=0.1") == "allreduce@0.5/async"


def test_a_busy_machine_is_said(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run")
    summary = summarise(paths)
    summary.machines = [MachineSummary(name="here", workers=2, other_cpu_percent=5.0)]
    paths.summary.write_text(summary.to_json())
    assert verdict_on(load_study(paths)).remarks == ()
    summary.machines[0].other_cpu_percent = 46.0
    paths.summary.write_text(summary.to_json())
    (remark,) = verdict_on(load_study(paths)).remarks
    assert "busy with other work" in remark and "46 % of the cores" in remark


def test_a_resumed_run_says_where_it_comes_from(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", settings={"resume": "x"}, resumes="gone, checkpoint 4")
    verdict = verdict_on(load_study(paths))
    assert "trained 3 more epochs" in verdict.sentence
    assert verdict.remarks == ("Resumed from gone, checkpoint 4.",)
    assert "gone, checkpoint 4" in write_report(paths).read_text()
