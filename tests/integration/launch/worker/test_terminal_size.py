"""What a script's standard input is: a terminal that has a size, and never any input."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os, subprocess, sys
from phalanx.launch.worker.bootstrap import give_terminal
give_terminal()
print(subprocess.run(["stty", "size"], capture_output=True, text=True, timeout=10).stdout.strip())
print([sys.stdin.read(), sys.stdin.read()], os.get_terminal_size(0).columns > 0)
"""


def test_a_worker_has_a_terminal_of_some_size_and_no_input() -> None:
    words = [sys.executable, "-c", CODE]
    ended = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
    )
    size, read = ended.stdout.splitlines()
    lines, columns = map(int, size.split())
    assert lines > 0 and columns > 0
    assert read == "['', ''] True"
