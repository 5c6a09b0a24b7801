"""The variables that ``torchrun`` sets, for scripts of DDP, Accelerate and Lightning.

``init_process_group`` reads RANK, WORLD_SIZE and MASTER_*; Accelerate also LOCAL_RANK; Lightning
takes itself for launched from outside when TORCHELASTIC_RUN_ID is there, and then believes RANK,
so machines may have unequal numbers of processes.
"""

from __future__ import annotations

from phalanx.launch.frameworks.framework import Places, Process


def environment(places: Places) -> dict[int, dict[str, str]]:
    return {process.rank: _variables(process, places) for process in places.processes}


def _variables(process: Process, places: Places) -> dict[str, str]:
    first, world = places.processes[0], str(len(places.processes))
    node = str(places.machines.index(process.machine))
    rank = str(process.rank)
    return {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(process.local_index),
        "LOCAL_WORLD_SIZE": str(process.locals),
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": str(len(places.machines)),
        "NODE_RANK": node,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(first.port),
        "TORCHELASTIC_RUN_ID": places.run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": str(process.threads),
        **_interface(process),
    }


def _interface(process: Process) -> dict[str, str]:
    if process.interface is None:
        return {}  # a wrong guess is worse than the library's own choice
    return {"GLOO_SOCKET_IFNAME": process.interface, "NCCL_SOCKET_IFNAME": process.interface}
