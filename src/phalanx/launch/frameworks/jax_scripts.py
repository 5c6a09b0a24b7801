"""The variables that ``keras.distribution`` and ``jax.distributed`` read in ``initialize()``."""

from __future__ import annotations

from phalanx.core.hosts_settings import endpoint
from phalanx.launch.frameworks.framework import Places, Process


def variables(process: Process, places: Places) -> dict[str, str]:
    first, count = places.processes[0], str(len(places.processes))
    meeting, rank = endpoint(first.address, first.port), str(process.rank)
    on_gpu = process.device.startswith("cuda:")
    return {
        "KERAS_BACKEND": "jax",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": meeting,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": count,
        "KERAS_DISTRIBUTION_PROCESS_ID": rank,
        "JAX_COORDINATOR_ADDRESS": meeting,
        "JAX_NUM_PROCESSES": count,
        "JAX_PROCESS_ID": rank,
        "OMP_NUM_THREADS": str(process.threads),
        "CUDA_VISIBLE_DEVICES": process.device.removeprefix("cuda:") if on_gpu else "-1",
        **({} if on_gpu else {"JAX_PLATFORMS": "cpu"}),
    }
