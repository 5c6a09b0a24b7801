"""Environment variables by which a worker finds those on other machines, under any launcher."""

from __future__ import annotations

PROCESS = "PHALANX_PROCESS"  # by hand: the number of this process, from 0
PROCESSES = "PHALANX_PROCESSES"  # by hand: the number of all processes
LOCALS = "PHALANX_LOCALS"  # by hand: the number on this machine; unknown when left out
MEET = "PHALANX_MEET"  # HOST[:PORT] of process 0; overrides the launcher's address
PORT = "PHALANX_PORT"  # the port on which process 0 listens
RUN_ID = "PHALANX_RUN_ID"  # a word that all processes of the run share
ADDRESS = "PHALANX_ADDRESS"  # this machine's address, or the network it is to be in (10.0.0.0/24)
MEMBERS = "PHALANX_MEMBERS"  # addresses of the run's machines (A,B,…), with reserved connections
POOL = "PHALANX_POOL"  # the blueprint
SERVERS = "PHALANX_SERVERS"  # names of machines, or a number: where parameter servers are
SERVE = "PHALANX_SERVE"  # "1": this process is a parameter server
TLS = "PHALANX_TLS"  # "1": encrypted connections (set by Phalanx's launcher; else the pool decides)
LINKS = "PHALANX_LINKS"  # JSON: bits per second of each machine's slowest link, by its name

STRATEGY = "PHALANX_STRATEGY"
EPOCHS = "PHALANX_EPOCHS"
BATCH = "PHALANX_BATCH"
SEED = "PHALANX_SEED"
PRECISION = "PHALANX_PRECISION"


def endpoint(address: str, port: int) -> str:
    """``address:port``; an IPv6 address is put in brackets, because it has colons."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
