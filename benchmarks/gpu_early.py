"""``python -m benchmarks gpu --only early``: gradients that leave a GPU before their step.

Two workers of the 90 M transformer on one GPU, as if on two hosts, over loopback: with it, without
it, and torch DDP on Gloo; in the same run, in alternated blocks.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import phalanx_command, report, spread
from benchmarks.hosts_teams import Failed, Place, Team, in_turns, lost
from phalanx.core.run_folder.run_key import RunKey

WORKERS = 2
HOME = "127.0.0.1"
SCRIPT = "benchmarks/scripts/gpu_early.py"


class Loopback:
    """Stands where a lab stands: its one machine is this one."""

    def command(self, _: str, words: list[str]) -> list[str]:
        return words


def early(rounds: int, steps: int) -> None:
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-")))
        key = folder / "run.key"
        key.touch(mode=0o600)
        key.write_text(RunKey.new().text())
        teams, lab = {}, Loopback()
        for number, kind in enumerate(("early", "late", "ddp")):
            team = Team(kind, lab, _places(kind, folder, 9900 + 10 * number))  # type: ignore[arg-type]
            ends.callback(team.close)
            try:
                team.ready()
                teams[kind] = team
            except Failed as failure:
                lost(kind, str(failure))
        found = in_turns(teams, lambda _: steps, rounds, lost)
    name = "transformer, two workers on one GPU as two hosts"
    for kind, seconds in found.items():
        report(f"{name}: a step, {kind}, ms", **spread([1e3 * s for s in seconds]))
    for other, bar in (("late", ">= 1.25"), ("ddp", None)):
        if "early" in found and other in found:
            ratios = [b / a for a, b in zip(found["early"], found[other], strict=True)]
            report(f"{name}: samples/s, early / {other}", bar=bar, **spread(ratios))


def _places(kind: str, folder: Path, port: int) -> list[Place]:
    found = []
    for rank in range(WORKERS):
        words: list[str]
        threads = max(1, len(os.sched_getaffinity(0)) // WORKERS)
        variables: dict[str, Any] = {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": "0"}
        if kind == "ddp":
            words = [sys.executable, SCRIPT, kind, str(rank)]
            variables |= {"MASTER_ADDR": HOME, "MASTER_PORT": str(port), "RANK": str(rank)}
            variables |= {"WORLD_SIZE": str(WORKERS), "GLOO_SOCKET_IFNAME": "lo"}
        else:
            words = phalanx_command("worker", SCRIPT, "--", kind, str(rank))
            variables |= {
                "PHALANX_KEY_FILE": str(folder / "run.key"),
                "PHALANX_MEET": f"{HOME}:{port}",
                "PHALANX_ADDRESS": HOME,
                "PHALANX_RUNS": str(folder / "runs"),
                "PHALANX_PROCESSES": str(WORKERS),
                "PHALANX_PROCESS": str(rank),
            }
        found.append(Place("here", words, variables))
    return found
