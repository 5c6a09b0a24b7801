"""Variables as launchers set them; what tells nothing about the seat is left out.

Those of torchrun and Open MPI were captured from real processes. Those of Slurm were not: they
are written after its source (src/common/env.c), which sets SLURM_STEP_* for steps only.
"""

from __future__ import annotations

TORCHRUN = {
    "RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29511",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "LOCAL_RANK": "1",
}
"""torch 2.13: ``torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29511``."""

STANDALONE = TORCHRUN | {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "45841",
    "TORCHELASTIC_RUN_ID": "2e485621-2783-4008-80ee-fd71968672a4",
}
"""``torchrun --standalone --nproc-per-node 2``."""

MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "855834625",
    "PMIX_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}
"""Open MPI 4.1.4: ``mpirun -np 2``."""

SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_NODELIST": "node[01-03,7],login",
    "SLURM_STEP_NODELIST": "node[01-03,7]",
    "SLURMD_NODENAME": "node7",
}
"""Not captured: the last of seven tasks on four nodes."""

BATCH_SCRIPT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_NODELIST": "node[01-03,7]",
}
"""Not captured: a script of sbatch, outside of srun; one process, whatever SLURM_NTASKS says."""

BY_HAND = {
    "PHALANX_PROCESS": "1",
    "PHALANX_PROCESSES": "3",
    "PHALANX_MEET": "10.77.0.2:9900",
}
