"""The variables that ``torchrun`` sets, for scripts of DDP, Accelerate and Lightning.

``init_process_group`` reads RANK, WORLD_SIZE and MASTER_*; Accelerate also LOCAL_RANK. If
TORCHELASTIC_RUN_ID is set, Lightning assumes that torchrun started it and uses RANK, so machines
may have unequal numbers of processes.

With only these variables, every process may train alone without a warning: with Accelerate if
there is no GPU, with Lightning if the script does not say how many devices there are. The last two
functions return the variables that prevent this.
"""

from __future__ import annotations

from phalanx.launch.frameworks.framework import Places, Process


def variables(process: Process, places: Places) -> dict[str, str]:
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
        **_accelerate(places),
        **_lightning(process, len(places.processes)),
    }


def _interface(process: Process) -> dict[str, str]:
    if process.interface is None:
        return {}  # a wrong guess is worse than the library's own choice
    return {"GLOO_SOCKET_IFNAME": process.interface, "NCCL_SOCKET_IFNAME": process.interface}


def _accelerate(places: Places) -> dict[str, str]:
    """Make Accelerate use CPUs and Gloo if any process has no GPU: NCCL needs one in each."""
    if all(process.device.startswith("cuda:") for process in places.processes):
        return {}
    return {"ACCELERATE_USE_CPU": "true"}


def _lightning(process: Process, world: int) -> dict[str, str]:
    """Return the default ``devices`` and ``num_nodes`` of Lightning's ``Trainer`` and ``Fabric``.

    Each process only checks that their product is the number of all processes, and takes its own
    device from a list of ``devices`` entries: so the values may differ between machines.
    """
    devices = next(n for n in range(process.locals, world + 1) if world % n == 0)
    sizes = {"DEVICES": str(devices), "NUM_NODES": str(world // devices)}
    return {f"{prefix}_{name}": n for prefix in ("PL_TRAINER", "LT") for name, n in sizes.items()}
