"""A barrier task of Spark: write its rows to disk, start its worker, return the worker's results.

The reason for a worker's failure is returned, not raised: Spark would repeat the whole stage.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import STARTED, THREADS
from phalanx.launch.cluster.node import own_address, port_of
from phalanx.spark import messages

PART_BYTES = 16 << 20


def work(batches: Iterator[Any], training: str, key: str, keras: bytes | None) -> Iterator[Any]:
    """The function for ``mapInArrow(barrier=True)``: it yields rows of ``messages.SCHEMA``."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    request = msgspec.json.decode(training, type=messages.TrainingRequest)
    rank = context.partitionId()
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None
    with tempfile.TemporaryDirectory(prefix="phalanx-", dir=local) as name:
        folder = Path(name)
        if keras is not None:
            (folder / messages.KERAS).write_bytes(keras)
        mine = _report(batches, folder, context.getTaskInfos()[rank].address, rank, request.store)
        said = context.allGather(msgspec.json.encode(mine).decode())
        tasks = [msgspec.json.decode(each, type=messages.TaskReport) for each in said]
        if any(task.problem for task in tasks):
            if mine.problem:
                yield _row(rank, "failure", msgspec.json.encode(mine.problem))
            return
        gpus = context.resources().get("gpu")
        worker = messages.WorkerRequest(
            training=request, rank=rank, folder=name, tasks=tasks, key=key, parent=os.getpid(),
            gpu=next(iter(gpus.addresses), None) if gpus else None,
        )  # fmt: skip
        events = RunPaths(Path(request.store or folder / "run")).events_of(rank)
        yield from _left(folder, rank, _run(worker, context.cpus()), events)


def _report(
    batches: Iterator[Any], folder: Path, place: str, rank: int, store: str | None
) -> messages.TaskReport:
    began = time.monotonic()
    rows, held, size = _write(batches, folder)
    try:
        address = own_address(place)
    except InputError as error:
        problem = messages.WorkerFailure(kind="input", text=error.cause, remedy=error.remedy)
        return messages.TaskReport(address="", port=0, rows=rows, bytes=size, problem=problem)
    port, resume = (0, None) if rank else (port_of(address), newest_checkpoint(store))
    return messages.TaskReport(
        address=address, port=port, rows=rows, bytes=size, held_out=held, resume=resume,
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _write(batches: Iterator[Any], folder: Path) -> tuple[list[int], int, int]:
    """Write the rows to files; return the rows of each record batch to train on, the number of
    rows that are held out, and the bytes of all."""
    import pyarrow as pa

    rows, size = dict[str, list[int]]({messages.ROWS: [], messages.HELD: []}), 0
    with ExitStack() as files:
        writers: dict[str, Any] = {}
        for batch in batches:
            size += batch.nbytes
            for name, part in _parts_of(batch).items():
                if part.num_rows:
                    if name not in writers:
                        writer = pa.ipc.new_file(str(folder / name), part.schema)
                        writers[name] = files.enter_context(writer)
                    writers[name].write_batch(part)
                    rows[name].append(part.num_rows)
    return rows[messages.ROWS], sum(rows[messages.HELD]), size


def _parts_of(batch: Any) -> dict[str, Any]:
    if messages.HELD_OUT not in batch.schema.names:
        return {messages.ROWS: batch}
    import pyarrow.compute as pc

    held, rest = batch.column(messages.HELD_OUT), batch.drop_columns([messages.HELD_OUT])
    return {messages.ROWS: rest.filter(pc.invert(held)), messages.HELD: rest.filter(held)}


def newest_checkpoint(store: str | None) -> str | None:
    """Return the checkpoint that a repeated training continues from, if there is one."""
    from phalanx.train.checkpoint.checkpoint_index import newest_valid

    try:
        return str(newest_valid(RunPaths(Path(store)).checkpoints)[0]) if store else None
    except InputError:
        return None  # the training ended before it wrote one


def _run(request: messages.WorkerRequest, cpus: int) -> int:
    """Run the worker, which does not outlive this process; return its exit code."""
    variables = {**os.environ, **dict.fromkeys(THREADS, str(cpus))}
    variables[STARTED] = str(time.monotonic())
    # The folders where Spark has put the files that the user sent.
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    words = [sys.executable, "-P", "-m", "phalanx.spark.worker"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=2, env=variables)
    try:
        child.communicate(msgspec.json.encode(request))
        return child.returncode
    finally:
        child.kill()
        child.wait()


def _left(folder: Path, rank: int, code: int, events: Path) -> Iterator[Any]:
    if (folder / messages.FAILURE).exists():
        yield _row(rank, "failure", (folder / messages.FAILURE).read_bytes())
    elif code:
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        failure = messages.WorkerFailure(
            kind="script", text=f"its process {ended}",
            remedy="Read the executor's log; its memory may have been too small.",
        )  # fmt: skip
        yield _row(rank, "failure", msgspec.json.encode(failure))
    else:
        yield _row(rank, "figures", (folder / messages.FIGURES).read_bytes())
        files = {"weights": folder / messages.WEIGHTS} if rank == 0 else {}
        for kind, path in {**files, "events": events}.items():
            with path.open("rb") as file:
                for number, part in enumerate(iter(partial(file.read, PART_BYTES), b"")):
                    yield _row(rank, kind, part, number)


def _row(rank: int, kind: str, data: bytes, part: int = 0) -> Any:
    import pyarrow as pa

    types = [pa.int32(), pa.int32(), pa.string(), pa.binary()]
    values = zip([rank, part, kind, data], types, strict=True)
    arrays = [pa.array([value], type=each) for value, each in values]
    return pa.RecordBatch.from_arrays(arrays, names=["worker", "part", "kind", "data"])
