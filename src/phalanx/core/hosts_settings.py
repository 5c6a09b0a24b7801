"""The variables by which a worker finds those on other machines, whatever started them."""

from __future__ import annotations

PROCESS = "PHALANX_PROCESS"  # by hand: the number of this process, from 0
PROCESSES = "PHALANX_PROCESSES"  # by hand: how many there are
LOCALS = "PHALANX_LOCALS"  # by hand: how many are on its machine; unknown when left out
MEET = "PHALANX_MEET"  # HOST[:PORT] of process 0; wins over what the launcher says
PORT = "PHALANX_PORT"  # the port on which process 0 is met
RUN_ID = "PHALANX_RUN_ID"  # a word that all processes of the run share
ADDRESS = "PHALANX_ADDRESS"  # this machine's address, or the network it is to be in (10.0.0.0/24)
MEMBERS = "PHALANX_MEMBERS"  # addresses of the run's machines (A,B,…), for whom room is kept
POOL = "PHALANX_POOL"  # the blueprint
SERVERS = "PHALANX_SERVERS"  # names of machines, or a number: where parameter servers are
SERVE = "PHALANX_SERVE"  # "1": this process is a parameter server
TLS = "PHALANX_TLS"  # "1": connections are encrypted (by our own launcher; else the pool says so)
LINKS = "PHALANX_LINKS"  # JSON: bits per second of each machine's slowest link, by its name

STRATEGY = "PHALANX_STRATEGY"
EPOCHS = "PHALANX_EPOCHS"
BATCH = "PHALANX_BATCH"
SEED = "PHALANX_SEED"
PRECISION = "PHALANX_PRECISION"


def endpoint(address: str, port: int) -> str:
    """``address:port``; an address of IPv6 in brackets, so that its colons are its own."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
