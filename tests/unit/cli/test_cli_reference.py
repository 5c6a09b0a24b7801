"""docs/reference/cli.md and the program say the same."""

from __future__ import annotations

from cli_reference import PAGE, options_of, page, verbs


def test_the_page_is_what_the_program_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run: python tests/unit/cli/cli_reference.py"


def test_no_verb_has_more_than_25_options() -> None:
    counts = {name: len(options_of(command)) + 1 for name, command in verbs()}  # and --help
    assert {name: count for name, count in counts.items() if count > 25} == {}
