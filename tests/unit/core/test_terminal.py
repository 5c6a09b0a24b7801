from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.live import Live
from rich.table import Table
from rich.text import Text

from phalanx.cli.console import CleanConsole
from phalanx.core.terminal import coloured, line_as_shown, printable, wrapped

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
PIECES = [
    "\x1b", "\x1b[", "\x9b", "\x1b]", "\x9d", "\x1bP", "\x90", "\x1b\\", "\x9c", "\x07", "2J",
    "31m", "52;c;aGk=", "\r", "\n", "\t", "\b", "c", ";", "a", "7", " ", "?1049h", "\x00", "\x7f",
    "Ä",
]  # fmt: skip
HOSTILE = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))


def steers(text: str) -> list[str]:
    """What is left, besides colours, that a terminal would obey."""
    rest = COLOUR.sub("", text)
    return [c for c in rest if c not in "\t\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]


@given(HOSTILE)
def test_only_tabs_and_line_ends_are_left_of_what_steers(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if c not in "\t\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert printable(shown) == shown


@given(HOSTILE)
@example("\x1b\x1b[2J[2J")
@example("\x1b[31\x1b[2Jm")
@example("\x1b]0;\x1b[2J\x07")
def test_colours_are_all_that_is_left_of_what_steers(text: str) -> None:
    shown = coloured(text)
    assert not steers(shown)
    assert coloured(shown) == shown
    colours = COLOUR.findall(shown)
    assert not colours or colours[-1] in ("\x1b[0m", "\x1b[m"), "what comes next has its own colour"


@given(st.text(st.characters(exclude_categories=["Cc"])))
def test_plain_text_stays(text: str) -> None:
    assert coloured(text) == text
    assert line_as_shown(text) == ([text] if text.strip() else [""])


@given(HOSTILE)
def test_no_line_steers(text: str) -> None:
    for line in line_as_shown(text):
        assert not steers(line) and "\r" not in line


@given(HOSTILE)
def test_what_is_printed_in_any_way_does_not_steer(text: str) -> None:
    table = Table(title=text)
    table.add_column(text)
    table.add_row(Text(text))
    console = CleanConsole(file=io.StringIO(), force_terminal=True, markup=False, highlight=False)
    console.print(text, style="dim")
    console.print(table)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert not steers(written)


def test_live_displays_still_move() -> None:
    console = CleanConsole(file=io.StringIO(), force_terminal=True, highlight=False)
    with Live("one\ntwo", console=console, auto_refresh=False) as live:
        live.update("three\x1b]0;title\x07", refresh=True)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1A" in written and "\x1b]" not in written


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("copy\x1b]52;c;aGk=\x07 it", "copy it"),
        ("copy\x9d52;c;aGk=\x9c it", "copy it"),
        ("\x1b[2J\x1b[H\x1b[?1049hgone\x9b3A", "gone"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[31mred\n", "\x1b[31mred\x1b[0m\n"),
        ("\x1b]8;;http://x\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("never \x1b]52;c;ended", "never ]52;c;ended"),
        ("ab\b\bcd\x1bc", "abcd"),
    ],
)
def test_what_scripts_print(text: str, shown: str) -> None:
    assert coloured(text) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("error: all is lost\rall is well", ["error: all is lost", "all is well"]),
        ("\r 10%|█ | 1/9 [0:01<0:08, 1.1it/s]\r100%|██| 9/9 [0:09<0:00, 1.0it/s]\n",
         ["100%|██| 9/9 [0:09<0:00, 1.0it/s]"]),
        ("Loading 1%\rLoading 99%\rDone\r\n", ["Loading 99%", "Done"]),
        ("|\r/\r-\rready", ["ready"]),
        ("\r\n", [""]),
    ],
)  # fmt: skip
def test_bars_are_shown_once_and_nothing_is_hidden(line: str, shown: list[str]) -> None:
    assert line_as_shown(line) == shown


def test_many_beginnings_take_no_time() -> None:
    for begin in ("\x1b]", "\x9d", "\x1b[0", "\x9b0", "\x1b ", "a\r"):
        line_as_shown(begin * (1 << 15))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_sentences_are_broken_between_words_in_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    said = "error: no such\x1b file\nhint: /a/path/that/is/long --and-option"
    assert wrapped(said, io.StringIO()) == printable(said)
    lines = ["error: no", "such file", "hint:", "/a/path/that/is/long", "--and-option"]
    assert wrapped(said, Terminal()).splitlines() == lines
