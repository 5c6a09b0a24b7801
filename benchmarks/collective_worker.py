"""One rank: an all-reduce of flat buffers in shared memory and through Gloo, alternated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.harness import alternate, give
from phalanx.sync.arena.arena import Arena
from phalanx.train.start.environment import detect

SIZES = {"64 KB": 64 << 10, "1 MB": 1 << 20, "32 MB": 32 << 20}


def repeats(size: int) -> int:
    return 10 if size > (8 << 20) else 200


def timed(call: Callable[[], None], size: int, ready: Callable[[], None]) -> Callable[[], float]:
    def block() -> float:
        ready()
        began = time.perf_counter()
        for _ in range(repeats(size)):
            call()
        return (time.perf_counter() - began) / repeats(size)

    return block


def shared(arena: Arena, size: int) -> Callable[[], None]:
    """Every worker ends with the sum: reduce one slice each, in memory that all read.

    The sums of one call are read before the next but one begins, so two result buffers and two
    barriers a call are enough.
    """
    count, rank, workers = size // 4, arena.rank, arena.workers
    parts = [arena.region(f"part{size}.{r}", count, torch.float32) for r in range(workers)]
    result = arena.region(f"result{size}", count, torch.float32)
    slices = [p[count * rank // workers : count * (rank + 1) // workers] for p in parts]
    out = result[count * rank // workers : count * (rank + 1) // workers]
    parts[rank].fill_(1.0)

    def call() -> None:
        arena.barrier()
        torch.add(slices[0], slices[1], out=out)
        for part in slices[2:]:
            out.add_(part)
        arena.barrier()
        parts[rank].copy_(result)  # in place, as Gloo leaves it

    return call


def gloo(size: int) -> Callable[[], None]:
    values = torch.ones(size // 4)
    return lambda: dist.all_reduce(values)


def main() -> None:
    torch.set_num_threads(1)
    environment = detect()
    assert environment.arena is not None
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['BENCH_RENDEZVOUS']}",
        rank=environment.rank,
        world_size=environment.workers,
    )
    blocks = {}
    for name, size in SIZES.items():
        ours = shared(environment.arena, size)
        blocks[f"shared {name}"] = timed(ours, size, environment.arena.barrier)
        blocks[f"gloo {name}"] = timed(gloo(size), size, environment.arena.barrier)
    give(alternate(blocks, 10))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
