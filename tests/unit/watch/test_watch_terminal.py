"""A run in a terminal: 80 × 24, live, resized, interrupted, without colours, and never steered."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import made_events
import pytest
from made_runs import CLOCK, write_run
from rich.cells import cell_len
from rich.console import Console

from phalanx.agent.system import readable
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev
from phalanx.observe.summary.summary import summarise
from phalanx.watch import terminal
from phalanx.watch.terminal import sparkline, watch_in_terminal

EVIL = "<b>\x1b]0;evil\x07\x1b[2J\x9b31m[red]" + "long" * 60
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def running(paths: RunPaths) -> RunPaths:
    """Make a finished run one that goes on."""
    for file in paths.events.iterdir():
        events = [e for e in ev.read_events(file) if e and not isinstance(e, ev.Finished)]
        file.write_bytes(b"".join(map(ev.encode, events)))
    paths.detached.touch()
    return paths


def plain(paths: RunPaths, width: int = 80) -> str:
    out = io.StringIO()
    watch_in_terminal(paths, Console(file=out, width=width))
    return out.getvalue()


def live(paths: RunPaths, **more: object) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    more = {"width": 80, "height": 24, "force_terminal": True} | more
    return Console(file=out, **more), out  # type: ignore[arg-type]


def test_without_a_terminal_one_frame(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "20261120-000000-digits", workers=12, machines=("m1", "m2", "m3"))
    paths.log_of(0).write_text("\n".join(f"line {number}" for number in range(100)))
    paths.summary.write_text(summarise(paths).to_json())
    lines = plain(paths).splitlines()
    assert len(lines) <= 24 and max(map(cell_len, lines)) <= 80
    assert lines[0] == "digits  done  allreduce  12 workers on 3 machines"
    assert "100 %" in lines[1] and "epoch 3/3" in lines[1]
    assert "training loss" in lines[2] and "test accuracy" in lines[2]
    assert any(line.startswith("m3 ") for line in lines) and "and " in "".join(lines)
    assert lines[-1] == "line 99"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (20, 5)])
def test_it_fits_terminals_of_all_sizes(tmp_path: Path, width: int, height: int) -> None:
    paths = write_run(tmp_path, "run", workers=5, logged={EVIL: 1.0})
    console, out = live(paths, width=width, height=height)
    watch_in_terminal(paths, console)
    lines = CONTROL.sub("", out.getvalue()).splitlines()
    assert len(lines) < height and max(map(cell_len, lines)) <= width


def test_no_text_of_a_run_steers_the_terminal(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", workers=2, logged={f"{EVIL} accuracy": 0.5})
    joined = made_events.joined(1, machine=EVIL, device=EVIL, time=CLOCK)
    saved = ev.Saved(time=CLOCK + 3, rank=0, path=f"checkpoints/{EVIL}", epoch=0)
    with paths.events_of(1).open("ab") as file:
        file.write(ev.encode(joined) + ev.encode(saved))
    paths.log_of(0).write_text(f"{EVIL}\n\x1b[31mred\x1b[0m\n\ttab\n")
    paths.machine(EVIL.replace("/", "")[:80]).write_bytes(paths.machine("here").read_bytes())
    shown = plain(paths)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    assert "[red]" in shown and "red" in shown.splitlines()[-2]
    console, out = live(paths)
    watch_in_terminal(paths, console)
    assert "evil\x07" not in out.getvalue() and "\x1b]0" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


def test_colours_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_run(tmp_path, "run")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console, out = live(paths, color_system="standard")
    watch_in_terminal(paths, console)
    assert "\x1b[36m" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    console, out = live(paths, color_system="standard")
    watch_in_terminal(paths, console)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out.getvalue())


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run")
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    watch_in_terminal(paths, Console(file=file, width=80))
    file.flush()
    assert b"samples/s" in file.buffer.getvalue()  # type: ignore[attr-defined]


def test_it_is_live_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = running(write_run(tmp_path, "run", epochs=2))
    monkeypatch.setattr("phalanx.watch.feed.reading.run_reader._LOOK", 0.0)
    console, out = live(paths)
    looks = 0

    def pass_time(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            console.size = (60, 20)  # type: ignore[assignment]
        if looks == 10:
            paths.summary.write_text(summarise(paths, status="done").to_json())

    drawn = counting_frames(monkeypatch)
    monkeypatch.setattr(time, "sleep", pass_time)
    watch_in_terminal(paths, console)
    assert looks <= 11
    assert [frame[:2] for frame in drawn] == [(80, 24), (60, 20), (60, 20), (60, 19)]
    assert "done" in out.getvalue().rpartition("\x1b[?1049l")[2]


def counting_frames(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    drawn: list[tuple[object, ...]] = []
    frame: Callable[..., object] = terminal.frame_of

    def counted(feed: object, *args: object) -> object:
        drawn.append(args)
        return frame(feed, *args)

    monkeypatch.setattr(terminal, "frame_of", counted)
    return drawn


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = running(write_run(tmp_path, "run"))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    console, out = live(paths)
    watch_in_terminal(paths, console)
    left, _, last = out.getvalue().rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in left and "running" in last
    assert paths.detached.exists()


def test_in_a_real_terminal(tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM end it with 0, and the screen is as it was."""
    paths = running(write_run(tmp_path, "run"))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from phalanx.core.run_folder.run_paths import RunPaths\n"
        "from phalanx.watch.terminal import watch_in_terminal\n"
        "watch_in_terminal(RunPaths(Path(sys.argv[1])))\n"
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(paths.folder)],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        os.close(theirs)
        try:
            shown = read_until(ours, b"samples/s")
            child.send_signal(number)
            shown += read_until(ours, b"\x1b[?1049l")
            assert child.wait(20) == 0
        finally:
            child.kill()
            child.wait()
            os.close(ours)
        assert b"\x1b[?1049h" in shown and b"Traceback" not in shown


def read_until(descriptor: int, what: bytes, seconds: float = 60.0) -> bytes:
    found, ends = b"", time.monotonic() + seconds
    while what not in found:
        if readable([descriptor], 0.5):
            found += os.read(descriptor, 1 << 16)
        assert time.monotonic() < ends, found
    return found


def test_sparklines() -> None:
    assert sparkline([1.0, 2.0, 3.0], 10) == "▁▅█"
    assert sparkline([1.0] * 3, 10) == "▁▁▁"
    assert len(sparkline([float(n) for n in range(1000)], 12)) == 12
