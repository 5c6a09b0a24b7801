"""``tune-switch --simulate``: searched in virtual time, confirmed by real processes."""

from __future__ import annotations

import json
from pathlib import Path

from commands import last_json, phalanx
from virtual_runs import SCRIPT

TESTED = SCRIPT.replace("epochs=2", "test=(x, x[:, :3].argmax(1)), epochs=2")


def test_the_search_is_virtual_and_its_confirmation_real(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TESTED)
    ended = phalanx(
        "tune-switch", "train.py", "--simulate", "--workers", "2", "--speeds", "1,0.5",
        "--step-seconds", "1s", "--grid", "2", "--tolerance", "100", "--confirm", "1", "--json",
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = last_json(ended.stdout)
    tried = [(t["stage"], t["strategy"], t["seed"], t["simulated"]) for t in found["tried"]]
    assert tried == [
        ("baseline", "allreduce", 0, True),
        ("search", "switch:at=0.5", 0, True),
        ("search", "async", 0, True),
        ("confirm", "allreduce", 1, False),
        ("confirm", "async", 1, False),
    ]
    assert (found["simulated"], found["spec"], found["confirmed"]) == (True, "async", True)
    seconds = {t["stage"]: t["seconds"] for t in found["tried"] if t["strategy"] == "allreduce"}
    assert seconds["baseline"] > 20, "20 steps of a virtual second and more"

    runs = tmp_path / "runs"
    for study, part, kind in (("study", [0, 1, 2], True), ("confirm_study", [3, 4], False)):
        record = json.loads((runs / found[study] / "study.json").read_text())
        assert record["runs"] == [found["tried"][number]["run"] for number in part]
        assert ("simulated" in (runs / found[study] / "report.html").read_text()) is kind
    summary = json.loads((runs / found["tried"][3]["run"] / "summary.json").read_text())
    assert summary["emulated"] == "speeds 1, 0.5", "as unequal as those of the search"
    text = " ".join(ended.stderr.split())
    assert "[1] baseline, simulated: allreduce, seed 0" in text
    assert "[4] confirm: allreduce, seed 1" in text
    assert "(virtual time)" in text


def test_the_reverse_switch_is_held_against_synchronous_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TESTED)
    ended = phalanx(
        "tune-switch", "train.py", "--simulate", "--workers", "3", "--straggler", "2:4",
        "--from", "async", "--to", "allreduce", "--grid", "2", "--tolerance", "100",
        "--confirm", "0", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = last_json(ended.stdout)
    assert [t["strategy"] for t in found["tried"]] == ["allreduce", "async@0.5/allreduce", "async"]
    assert (found["point"], found["spec"], found["confirm_study"]) == (1.0, "async", None)
    assert "async is the latest of 2 points" in " ".join(ended.stderr.split())
