"""What a script prints and logs, on the terminal of who runs it."""

from __future__ import annotations

import re

import pytest
from cli_support import TRAINING, Answer, Shell
from made_runs import write_run

from phalanx.core.terminal import printable

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
CLIPBOARD, CLEAR, RED = "\x1b]52;c;cm0gLXJmIC8=\x07", "\x1b[2J\x1b[H", "\x1b[31mred\x1b[0m"
HOSTILE = f"{RED} {CLIPBOARD}{CLEAR}\x9b2J hidden\rseen"
PRINTS = TRAINING.replace('print("words:"', f'print({HOSTILE!r})\nprint("words:"').replace(
    '"rate divided by the workers"', repr(f"a note {CLIPBOARD}{CLEAR}")
)


def check_clean(answer: Answer) -> None:
    rest = COLOUR.sub("", answer.out + answer.err)
    assert printable(rest) == rest


def test_the_first_workers_output_does_not_steer_the_terminal(shell: Shell) -> None:
    answer = shell("run", shell.script(PRINTS), "--workers", "2")
    assert answer.code == 0, answer.err
    check_clean(answer)
    assert f"{RED}  hidden\nseen\n" in answer.out
    logs = shell("logs")
    check_clean(logs)
    assert RED in logs.out and "hidden\nseen\n" in logs.out


@pytest.mark.parametrize("where", ["stdout", "exception"])
def test_a_failure_does_not_steer_the_terminal(shell: Shell, where: str) -> None:
    text = f"raise ValueError({HOSTILE!r})" if where == "exception" else "raise SystemExit(3)"
    script = TRAINING.replace('print("words:"', f'print({HOSTILE!r})\n{text}\nprint("words:"')
    answer = shell("run", shell.script(script))
    assert answer.code == 1
    check_clean(answer)


def test_names_and_texts_of_a_runs_files_do_not_steer_the_terminal(shell: Shell) -> None:
    write_run(
        shell.runs, "real", strategy="allreduce", machines=(f"here{CLIPBOARD}",),
        logged={f"f1{CLEAR}": 0.5}, resumes=f"x{CLIPBOARD}, checkpoint 1",
    )  # fmt: skip
    for words in (["runs"], ["logs", "real"], ["switch", "real", "async"], ["stop", "real"]):
        check_clean(shell(*words))
