"""A long run, watched: 10 hours of 20 workers with steps of 20 ms, which are 36 million steps.

``python -m benchmarks watch-history [--folder F] [--hours 10] [--workers 20] [--keep]``: the run is
made up from a seed in a folder (about 4 GB, removed afterwards), its roll-ups are built, and every
chart is drawn. Then the run goes on, and what following it costs is measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness import report
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.event_types import Joined, Planned, encode
from phalanx.watch.feed.history import History

STEP_SECONDS = 0.02
ROWS, LINES = 12, 64
"""Steps of a line, and how many different lines there are: only times and losses are all new."""
EPOCH_SECONDS = 1200.0
BEGAN = 5000.0
POINTS = 600
FOLLOWED, ASKED = 30, 2
"""Seconds in which the run goes on, and after how many of them pages ask for charts."""
SLICE = 0.2
"""Seconds of reading between two looks at the progress, as when pages are served."""
LEAST = 0.001
"""Seconds of charts that need not be listed."""
MOST_SECONDS, MOST_MEMORY, MOST_SHARE = 1.0, 300, 0.03


class MadeWorker:
    """The events of one worker that never was, line by line."""

    def __init__(self, rank: int, workers: int) -> None:
        random = np.random.default_rng(rank)
        shares = np.array([0.05, 0.6, 0.05, 0.12, 0.05, 0.08, 0.03])
        parts = shares * random.uniform(0.8, 1.15, (LINES, ROWS, 7)) * STEP_SECONDS
        spans = parts.sum(axis=2) + random.uniform(0.0, 0.001, (LINES, ROWS))
        spans *= ROWS * STEP_SECONDS / spans.sum(axis=1, keepdims=True)
        self._starts = np.cumsum(spans, axis=1) - spans
        self._noise = random.normal(0.0, 0.15, (LINES, ROWS))
        self._texts = [self._fixed(rank, line, random) for line in parts]
        self.rank, self.workers = rank, workers

    @staticmethod
    def _fixed(rank: int, parts: np.ndarray, random: np.random.Generator) -> bytes:
        names = ("input", "compute", "send", "wait", "reduce", "update", "settle")
        columns: dict[str, list[float]] = {"samples": [32] * ROWS}
        for number, name in enumerate(names):
            columns[name] = np.minimum(parts[:, number], STEP_SECONDS).round(7).tolist()
        columns["staleness"] = random.integers(0, 4, ROWS).tolist()
        return msgspec.json.encode(columns)[1:-1]

    def head(self, seconds: float) -> bytes:
        joined = Joined(
            time=BEGAN - 2.0, wall=1.8e9, rank=self.rank, workers=self.workers,
            machine=f"made-{self.rank}", pid=1, device="cpu", threads=1, precision="float32",
            strategy="async", parameters=1, seed=0, versions={}, notes=[],
        )  # fmt: skip
        epochs = max(1, round(seconds / EPOCH_SECONDS))
        samples = int(32 * self.workers * EPOCH_SECONDS / STEP_SECONDS)
        planned = Planned(time=BEGAN, rank=self.rank, epochs=epochs, samples=samples, batch=32)
        return encode(joined) + encode(planned)

    def lines(self, first: float, last: float) -> Iterator[bytes]:
        """Yield what it writes between two times since the run began."""
        per_line = ROWS * STEP_SECONDS
        for number in range(round(first / per_line), round(last / per_line)):
            start, place = number * per_line, number % LINES
            losses = 0.2 + 2.0 / (1.0 + start / 900.0) + self._noise[place]
            began = (BEGAN + start + self._starts[place]).round(6)
            yield b'{"type":"steps","rank":%d,"epoch":%d,"first":%d,"began":%s,%s,"loss":%s}\n' % (
                self.rank,
                start // EPOCH_SECONDS,
                number * ROWS,
                msgspec.json.encode(began.tolist()),
                self._texts[place],
                msgspec.json.encode(losses.tolist()),
            )


def make_run(paths: RunPaths, workers: int, seconds: float) -> int:
    """Write the events of a whole run; return their bytes."""
    paths.make()
    for rank in range(workers):
        worker = MadeWorker(rank, workers)
        with paths.events_of(rank).open("wb", buffering=1 << 20) as file:
            file.write(worker.head(seconds))
            file.writelines(worker.lines(0.0, seconds))
    return sum(paths.events_of(rank).stat().st_size for rank in range(workers))


def build(paths: RunPaths) -> dict[str, float]:
    """Build the roll-ups; run in a process of its own, whose memory is measured."""
    history, shares = History(paths), []
    began = time.perf_counter()
    while True:
        history.read_more(SLICE)
        if (share := history.share_read) is None:
            break
        shares.append(share)
    seconds = time.perf_counter() - began
    history.close()
    gap = max(np.diff([0.0, *shares, 1.0]))
    used = {"processor": time.process_time(), "memory": _megabytes()}
    return {"seconds": seconds, "looks": len(shares), "gap": gap, **used}


def draw(paths: RunPaths, seconds: float) -> dict[str, float]:
    """Draw every chart once; return the seconds of each, none of which was drawn before."""
    found: dict[str, float] = {}
    history = History(paths)
    found["open"] = _timed(partial(history.read_more, 60.0))
    for by, end in (("time", seconds), ("step", seconds / STEP_SECONDS)):
        for share in (1.0, 0.3, 1 / 10, 1 / 60, 1 / 300, 1 / 3600):
            first, last = 0.37 * end * (1 - share), 0.37 * end * (1 - share) + share * end
            name = f"by {by}, {share * seconds:.0f} s"
            found[name] = _timed(partial(history.charts, by, POINTS, first, last))
            if by == "time":
                look = f"timeline, {share * seconds:.0f} s"
                found[look] = _timed(partial(history.timeline, first, last, 300))
    found["by epoch, all"] = _timed(partial(history.charts, "epoch", POINTS))
    found["timeline, 1 s"] = _timed(partial(history.timeline, seconds / 2, seconds / 2 + 1.0))
    found["memory"] = _megabytes()
    history.close()
    return found


def follow(paths: RunPaths, workers: int, seconds: float) -> float:
    """Return the share of a core that following the run takes, with what three pages ask for."""
    history = History(paths)
    history.read_more(60.0)
    made = [MadeWorker(rank, workers) for rank in range(workers)]
    used, began = 0.0, time.perf_counter()
    for second in range(FOLLOWED):
        for worker in made:
            with paths.events_of(worker.rank).open("ab") as file:
                file.writelines(worker.lines(seconds + second, seconds + second + 1))
        before = time.process_time()
        history.read_more()
        if not second % ASKED:
            for _ in range(3):
                msgspec.json.encode(history.charts("time", POINTS, None, None))
        used += time.process_time() - before
        time.sleep(max(0.0, began + second + 1 - time.perf_counter()))
    history.close()
    return used / FOLLOWED


def _timed(task: Callable[[], object]) -> float:
    began = time.perf_counter()
    msgspec.json.encode(task())
    return time.perf_counter() - began


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _alone(part: str, paths: RunPaths, workers: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.watch_history", "--part", part]
    command += ["--folder", str(paths.folder), "--workers", str(workers)]
    command += ["--hours", str(seconds / 3600)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=3600)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure(paths: RunPaths, workers: int, seconds: float) -> None:
    began = time.perf_counter()
    size = make_run(paths, workers, seconds)
    steps = round(workers * seconds / STEP_SECONDS)
    made = {"steps": steps, "bytes": size, "workers": workers}
    report("a long run, made up, s", value=time.perf_counter() - began, **made)
    built = _alone("build", paths, workers, seconds)
    rows = sum(file.stat().st_size for file in paths.rollups.iterdir())
    used = built["processor"]
    report("a long run, roll-ups built, s", value=built["seconds"], processor=used, bytes=rows)
    report("a long run, memory while building, MB", value=built["memory"], bar=f"<= {MOST_MEMORY}")
    report("a long run, greatest step of the progress", value=built["gap"], looks=built["looks"])
    drawn = _alone("draw", paths, workers, seconds)
    report("a long run, memory while drawing, MB", value=drawn.pop("memory"))
    slowest = max(drawn, key=lambda name: drawn[name])
    listed = {name: round(took, 4) for name, took in drawn.items() if took > LEAST}
    value = drawn[slowest]
    report("a long run, slowest chart, s", value=value, bar=f"< {MOST_SECONDS}", all=listed)
    followed = _alone("follow", paths, workers, seconds)["share"]
    report("a long run, followed, share of a core", value=followed, bar=f"<= {MOST_SHARE}")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser("benchmarks watch-history", description=__doc__)
    parser.add_argument("--folder", type=Path, help="a new folder for the run")
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--keep", action="store_true", help="do not remove the run")
    parser.add_argument("--part", choices=("build", "draw", "follow"), help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    seconds = given.hours * 3600
    if given.part:
        paths = RunPaths(given.folder)
        if given.part == "build":
            found = build(paths)
        elif given.part == "draw":
            found = draw(paths, seconds)
        else:
            found = {"share": follow(paths, given.workers, seconds)}
        print(json.dumps(found))
        return
    if given.folder is not None and given.folder.exists():
        raise SystemExit(f"{given.folder} is there already: name a new folder")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="phalanx-watch-"))
    try:
        _measure(RunPaths(folder), given.workers, seconds)
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
