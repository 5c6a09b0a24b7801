"""docs/reference/cli.md and the program say the same."""

from __future__ import annotations

import re

from cli_reference import PAGE, options_of, page, verbs


def test_the_page_is_what_the_program_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run: python tests/unit/cli/cli_reference.py"


def test_every_verb_and_option_is_on_the_page() -> None:
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))
    assert list(sections) == [name for name, _ in verbs()]
    for name, command in verbs():
        real = {n for o in options_of(command) for n in [*o.opts, *o.secondary_opts]}
        assert set(re.findall(r"`(--?[a-z][a-z-]*)`", sections[name])) == real


def test_the_verbs_are_those_that_are_built() -> None:
    assert {name for name, _ in verbs()} == {
        "demo", "run", "compare", "plan", "simulate", "pool init",
        "pool trust", "pool check", "pool convert",
        "pool probe", "data inspect", "data convert", "runs", "attach",
        "report", "logs", "switch",
        "stop", "resume", "export", "doctor", "worker",
        "lab up", "lab down", "lab status", "lab slow", "lab cut", "lab heal", "lab kill",
    }  # fmt: skip


def test_no_verb_has_more_than_25_options() -> None:
    counts = {name: len(options_of(command)) + 1 for name, command in verbs()}  # and --help
    assert {name: count for name, count in counts.items() if count > 25} == {}
