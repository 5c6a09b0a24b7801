"""A run in a notebook: HTML that is never more than text, updated in place."""

from __future__ import annotations

import html.parser
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import made_events
import pytest
from made_runs import CLOCK, write_run, write_study

import phalanx
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev
from phalanx.observe.events.notes import Note, encode_note
from phalanx.observe.summary.summary import summarise
from phalanx.watch.notebook import RunPanel

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[2J\u202e" + "long" * 99
TAGS = {"div", "figure", "svg", "polyline", "figcaption", "pre", "span"}


class Checked(html.parser.HTMLParser):
    """Fails on any element or attribute that the page does not have itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        self.seen.append(tag)


def tags(text: str) -> list[str]:
    checked = Checked()
    checked.feed(text)
    checked.close()
    return checked.seen


def test_a_finished_run_elsewhere(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "20261120-000000-digits", workers=3, machines=("m1", "m2"))
    paths.summary.write_text(summarise(paths).to_json())
    panel = phalanx.watch(paths.folder)
    text = panel._repr_html_()
    assert tags(text).count("figure") == 3 and "http" not in text
    assert "training loss" in text and "digits" in text and "100 %" in text
    assert repr(panel).startswith("<run 20261120-000000-digits: done")


def test_hostile_names_are_text(tmp_path: Path) -> None:
    paths = write_run(
        tmp_path, "run", workers=2, logged={f"{EVIL} accuracy": 0.5}, strategy="async"
    )
    joined = made_events.joined(1, machine=EVIL, device=EVIL, time=CLOCK)
    saved = ev.Saved(time=CLOCK + 3, rank=0, path="checkpoints/" + EVIL.replace("/", ""), epoch=0)
    with paths.events_of(1).open("ab") as file:
        file.write(ev.encode(joined) + ev.encode(saved))
    paths.notes.write_text(encode_note(Note(time=0.0, text=EVIL)) + "\n")
    text = RunPanel(paths)._repr_html_()
    tags(text)
    assert "<script" not in text and "<img" not in text and "&lt;script&gt;" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert len(text) < 60_000


def test_many_workers_and_gaps(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", workers=60, steps=2, batch=600)
    text = RunPanel(paths)._repr_html_()
    assert "and 45 more" in text and text.count("<polyline") <= 36
    assert "nan" not in text.lower().replace("finance", "")


def test_nothing_yet(tmp_path: Path) -> None:
    assert tags(RunPanel(RunPaths(tmp_path / "empty"))._repr_html_())
    with pytest.raises(InputError):
        phalanx.watch("no such run")


def test_a_study_means_its_newest_run(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    write_run(tmp_path, "b")
    study = write_study(tmp_path, "study", ["a", "b"])
    assert repr(phalanx.watch(study.folder)).startswith("<run b:")


def going_on(folder: Path) -> RunPaths:
    paths = write_run(folder, "run", status=None)
    paths.detached.touch()
    return paths


class Handle:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        assert raw and shown["text/plain"].startswith("<run ")
        self.shown.append(shown["text/html"])


@pytest.fixture
def jupyter(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """A notebook whose display handle remembers what it shows."""
    handle = Handle()
    display = ModuleType("IPython.display")
    display.__dict__["display"] = lambda _, raw, display_id: handle
    module = ModuleType("IPython")
    shell = type("Shell", (), {"kernel": object()})()
    module.__dict__.update(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("phalanx.watch.feed.reading.run_reader._LOOK", 0.0)
    return handle


def test_in_jupyter_it_is_updated_until_the_run_ends(
    tmp_path: Path, jupyter: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, slept = going_on(tmp_path), []

    def pass_time(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 5:
            paths.summary.write_text(summarise(paths, status="failed").to_json())

    monkeypatch.setattr(time, "sleep", pass_time)
    assert phalanx.watch(paths.folder) is None
    assert len(slept) == 5 and len(jupyter.shown) == 2
    assert "running" in jupyter.shown[0] and "failed" in jupyter.shown[1]


def test_an_interrupted_cell_ends(
    tmp_path: Path, jupyter: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert phalanx.watch(going_on(tmp_path).folder) is None
    assert len(jupyter.shown) == 1


def test_ipython_in_a_terminal_is_no_notebook(
    tmp_path: Path, jupyter: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: object())
    assert isinstance(phalanx.watch(write_run(tmp_path, "run").folder), RunPanel)
    assert jupyter.shown == []


def test_in_marimo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    module = ModuleType("marimo")
    output = type("Output", (), {"replace": staticmethod(shown.append)})
    module.__dict__.update(running_in_notebook=lambda: True, Html=str, output=output)
    monkeypatch.setitem(sys.modules, "marimo", module)
    assert phalanx.watch(write_run(tmp_path, "run").folder) is None
    assert len(shown) == 1 and tags(shown[0])


def test_the_name_stays_a_function_whatever_is_imported() -> None:
    code = (
        "import sys, phalanx\nassert 'torch' not in sys.modules\nassert callable(phalanx.watch)\n"
        "import phalanx.watch.feed.run_feed\nassert callable(phalanx.watch)\n"
        "from phalanx import watch\nassert callable(watch) and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
