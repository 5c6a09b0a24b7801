"""The worker of a probe as a process: what it makes of bad orders, and when it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.probe import probe_messages as m

WORKER = [sys.executable, "-m", "phalanx.sync.probe.probe_worker"]


def orders(**changes: object) -> bytes:
    fields = {"key": RunKey.new().text(), "address": "127.0.0.1", "tls": False, "seconds": 60.0}
    return m.encode(m.ProbeOrders(**{**fields, **changes})) + b"\n"  # type: ignore[arg-type]


def answers(lines: bytes) -> tuple[int, list[m.Answer], str]:
    """To its end, which is not that of its input."""
    with subprocess.Popen(
        WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as worker:
        assert worker.stdin and worker.stdout and worker.stderr
        worker.stdin.write(lines)
        worker.stdin.flush()
        said = [m.answer_decoder.decode(line) for line in worker.stdout]
        return worker.wait(30), said, worker.stderr.read().decode()


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b'{"say":"mesh"}\n', orders(key="f" * 63)])
def test_bad_orders_end_it_with_one_line_that_has_no_key(line: bytes) -> None:
    code, said, errors = answers(line)
    assert (code, said, len(errors.splitlines())) == (2, [], 1)
    assert "fff" not in errors


def test_a_bad_request_ends_it_with_one_line() -> None:
    code, said, errors = answers(orders() + b'{"say":"collective","name":"x"}\n')
    assert code == 2
    assert [type(answer) for answer in said] == [m.Ready]
    assert len(errors.splitlines()) == 1


def test_an_address_of_another_machine_is_a_problem_with_a_remedy() -> None:
    code, (problem,), _ = answers(orders(address="192.0.2.1"))
    assert code == 0
    assert isinstance(problem, m.ProbeProblem)
    assert "192.0.2.1" in problem.cause
    assert problem.remedy


def test_it_ends_with_its_input_and_with_its_time() -> None:
    ended = subprocess.run(WORKER, input=orders(), capture_output=True, timeout=180, check=False)
    assert ended.returncode == 0
    assert answers(orders(seconds=0.01))[0] == 1
