"""A machine as an agent would describe it."""

from __future__ import annotations

from typing import Any

from phalanx.pool.machine_facts import Address, MachineFacts

GIB = 2**30


def facts(**changes: Any) -> MachineFacts:
    fields: dict[str, Any] = {
        "hostname": "alpha", "user": "ml", "folder": "/home/ml/.cache/phalanx",
        "disk_free": 50 * GIB, "python": "/usr/bin/python3", "cores": 4, "cpu_ids": [0, 1, 2, 3],
        "cpu_model": "", "memory": 8 * GIB, "gpus": [],
        "addresses": [Address(interface="eth0", address="10.0.0.2")], "machine_id": "one",
        "wall": 0.0,
    }  # fmt: skip
    return MachineFacts(**{**fields, **changes})
