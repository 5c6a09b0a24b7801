"""The page: whole, safe, self-contained, for runs in any state."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from made_runs import write_run, write_study

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev
from phalanx.observe.summary.summary import summarise
from phalanx.report.html import write_report
from phalanx.report.load import load_study
from phalanx.report.study_verdict import verdict_on
from phalanx.report.windows import cut_window, usual_span

FIGURES = (
    "accuracy-by-epoch", "accuracy-by-time", "loss-by-epoch", "loss-by-time", "time-split",
    "timeline", "staleness", "machines",
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>&\"'"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    home = tmp_path_factory.mktemp("runs")
    for strategy, workers in (("single", 1), ("allreduce", 2), ("switch:at=0.5", 2)):
        write_run(home, strategy.replace(":", "-"), strategy=strategy, workers=workers, epochs=4)
    paths = write_study(
        home,
        "study",
        ["single", "allreduce", "switch-at=0.5"],
        command=["phalanx", "compare", HOSTILE],
        study=HOSTILE,
    )
    write_report(paths)
    return paths


class Page(HTMLParser):
    """Every tag with its attributes, and the text of the first heading."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.heading = ""
        self._in_heading = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_heading = tag == "h1" or self._in_heading

    def handle_endtag(self, tag: str) -> None:
        self._in_heading = self._in_heading and tag != "h1"

    def handle_data(self, data: str) -> None:
        self.heading += data if self._in_heading else ""


def test_nothing_is_fetched_and_nothing_runs(study: RunPaths) -> None:
    text = study.report.read_text()
    assert "http://" not in text and "https://" not in text
    assert "@import" not in text
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "img"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")


def test_a_hostile_name_is_shown_not_obeyed(study: RunPaths) -> None:
    text = study.report.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_dollar_sign_is_no_formula(tmp_path: Path) -> None:
    """Of names that people choose: a strategy of a plugin, a metric that a script logs."""
    paths = write_run(tmp_path, "run", epochs=1, logged={"$\\frac{$_accuracy": 0.5})
    summary = summarise(paths)
    summary.strategy = "$x_{$"
    paths.summary.write_text(summary.to_json())
    first = write_report(paths).read_bytes()
    assert write_report(paths).read_bytes() == first, "the same run gives the same page"
    assert "$x_{$" in (paths.figures / "accuracy-by-epoch.svg").read_text()


def test_both_kinds_of_curves_and_what_was_hidden_are_drawn(tmp_path: Path) -> None:
    plain, paths = (write_run(tmp_path, name, workers=2, epochs=3) for name in ("plain", "run"))
    for rank in (0, 1):
        events = paths.events_of(rank)
        changed = [
            msgspec.structs.replace(e, hidden=[0.0005] * len(e.began)) if isinstance(e, ev.Steps)
            else msgspec.structs.replace(e, rate=0.1 / (e.epoch + 1), gradient_norm=1.0 + e.epoch)
            if isinstance(e, ev.EpochDone) else e
            for e in ev.read_events(events) if e is not None
        ]  # fmt: skip
        events.write_bytes(b"".join(map(ev.encode, changed)))
    text = write_report(paths).read_text()
    assert "train accuracy (solid), test accuracy (dashed)" in text
    assert "train loss (solid), test loss (dashed)" in text
    assert "Learning rate and gradients" in text
    drawn = {file.stem: file.read_text() for file in paths.figures.glob("*.svg")}
    assert {"rate-by-epoch", "gradient-norm-by-epoch"} <= set(drawn)
    assert ">hidden<" in drawn["time-split"] and ">hidden<" in drawn["timeline"]
    text = write_report(plain).read_text()
    assert "Learning rate and gradients" not in text
    assert not [f for f in plain.figures.glob("t*.svg") if ">hidden<" in f.read_text()]


@pytest.mark.parametrize("linked", ["report.html", "figures/loss-by-epoch.png"])
@pytest.mark.usefixtures("undrawn")
def test_nothing_is_written_through_a_link(tmp_path: Path, linked: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    paths = write_run(tmp_path, "run", epochs=1)
    paths.figures.mkdir()
    (paths.folder / linked).symlink_to(precious)
    for name in ("report.partial", "report.html.part"):
        (paths.folder / name).symlink_to(precious)
    write_report(paths)

    assert precious.read_text() == "precious"
    assert not (paths.folder / linked).is_symlink()


def test_figures_that_are_a_link_are_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    paths = write_run(tmp_path, "run", epochs=1)
    paths.figures.symlink_to(elsewhere)
    with pytest.raises(InputError, match="is a link"):
        write_report(paths)
    assert not list(elsewhere.iterdir())


def empty(home: Path) -> RunPaths:
    return RunPaths(home / "nothing")


def only_planned(home: Path) -> RunPaths:
    paths = write_run(home, "planned")
    for file in (*paths.events.iterdir(), *paths.machines.iterdir()):
        file.unlink()
    return paths


def cut_short(home: Path) -> RunPaths:
    paths = write_run(home, "cut", status=None)
    for rank in range(2):
        data = paths.events_of(rank).read_bytes()
        paths.events_of(rank).write_bytes(data[: len(data) // 3])
    return paths


def joined_only(home: Path) -> RunPaths:
    paths = write_run(home, "joined", epochs=0, status=None)
    first = next(e for e in ev.read_events(paths.events_of(0)) if isinstance(e, ev.Joined))
    paths.events_of(0).write_bytes(ev.encode(first))
    return paths


def study_of_nothing(home: Path) -> RunPaths:
    return write_study(home, "study", [])


@pytest.mark.parametrize(
    "make",
    [empty, only_planned, cut_short, joined_only, study_of_nothing],
    ids=lambda f: f.__name__,
)
def test_a_run_in_any_state_has_a_report(tmp_path: Path, make: object) -> None:
    paths = make(tmp_path)  # type: ignore[operator]
    text = write_report(paths).read_text()
    assert Page(text).heading.replace("\u00a0", " ") == verdict_on(load_study(paths)).sentence
    assert "None" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)


def test_the_window_shows_each_moment_of_a_worker_once(tmp_path: Path) -> None:
    run = load_study(write_run(tmp_path, "run", slow={1: 2.0})).runs[0]
    span = usual_span(run.files.ranks)
    assert span is not None
    window = cut_window(run.files.ranks, span)
    for _, bars in window.lanes:
        assert sum(bar.seconds for bar in bars) == pytest.approx(span, rel=0.01)
        ends = [bar.start + bar.seconds for bar in bars]
        for end, after in zip(ends, bars[1:], strict=False):
            assert after.start == pytest.approx(end, abs=1e-6)
