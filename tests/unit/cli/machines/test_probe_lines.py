"""``phalanx pool probe``: its mistakes, and its tables at 80 columns."""

from __future__ import annotations

import itertools
from io import StringIO

import pytest
from cli_support import Shell
from rich.console import Console

from phalanx.cli.show import probe_words
from phalanx.pool.measured import CollectiveFigures, LinkFigures, Probe


def made(count: int, latency: float = 3.1e-5, bandwidth: float = 1.2e8, width: int = 2) -> Probe:
    names = [f"m{number}".ljust(width, "x") for number in range(count)]
    links = [
        LinkFigures(a, b, latency, bandwidth * (1 + number % 3))
        for number, (a, b) in enumerate(itertools.permutations(names, 2))
    ]
    collectives = [
        CollectiveFigures(name, size, 0.0999 * factor, 0.01, 3)
        for size in (64, 4096, 65536, 1 << 20, 16 << 20)
        for factor, name in enumerate(("all_reduce.direct", "all_reduce.butterfly"), start=1)
    ]
    date = "2026-01-02T03:04:05+00:00"
    return Probe(date, 1.0, 2.0, names, links, collectives, names, message_seconds=5e-5)


def shown(*tables: object) -> list[str]:
    console = Console(file=StringIO(), width=80)
    for table in tables:
        console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 12, 20])
@pytest.mark.parametrize("width", [2, 60])
def test_eighty_columns(count: int, width: int) -> None:
    probe = made(count, latency=0.1234, bandwidth=3.123e9, width=width)
    title, table = probe_words.links_table(probe)
    lines = [title, *shown(table, probe_words.collectives_table(probe)), *probe_words.notes(probe)]
    assert max(map(len, lines)) <= 80
    cut = [line for line in shown(probe_words.collectives_table(probe)) if "…" in line]
    assert not cut
    assert "m0" in "".join(lines)
    assert any("123 ms" in line for line in lines)


def test_a_pair_that_was_not_measured_is_a_question_mark() -> None:
    whole = made(3)
    probe = Probe(whole.date, 1.0, 2.0, whole.machines, whole.links[1:])
    assert "?" in shown(probe_words.links_table(probe)[1])[1]


def test_collectives_have_time_ratio_and_the_best() -> None:
    lines = {
        line.split()[0]: line.split()[1:] for line in shown(probe_words.collectives_table(made(3)))
    }
    assert lines["direct"] == ["99.9", "ms", "×10"] * 5
    assert lines["fastest"] == ["direct"] * 5
    assert lines["chosen"][0] == "direct"


def test_mistakes(shell: Shell) -> None:
    (shell.folder / "pool.yaml").write_text("machines: {a: {host: here}}")
    assert shell("pool", "probe", "none.yaml").code == 2
    short = shell("pool", "probe", "pool.yaml", "--seconds", "0")
    assert (short.code, "--seconds cannot be 0" in short.err) == (2, True)
    assert shell("pool", "probe", "pool.yaml", "--machines", "beta").code == 2
