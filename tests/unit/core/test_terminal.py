from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.terminal import printable


@given(st.text())
def test_only_tabs_and_line_ends_are_left_of_what_steers(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if c not in "\t\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert printable(shown) == shown


def test_letters_stay() -> None:
    assert printable("a\tÄ 漢\n\x1b[31mred\x07") == "a\tÄ 漢\n[31mred"
