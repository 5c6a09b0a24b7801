"""The facts of a machine, as its agent reports them."""

from __future__ import annotations

from typing import Annotated

import msgspec

Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    name: Text
    memory: Count | None = None


class Address(msgspec.Struct, frozen=True, kw_only=True):
    interface: Text
    address: Text


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``facts``; another machine sends it, so types and sizes are checked."""

    hostname: Text
    user: Text
    folder: Text
    disk_free: Count | None
    python: Text
    cores: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    cpu_ids: Annotated[list[Count], msgspec.Meta(max_length=65536)]
    cpu_model: Text
    memory: Count | None
    gpus: Annotated[list[Gpu], msgspec.Meta(max_length=1024)]
    addresses: Annotated[list[Address], msgspec.Meta(max_length=1024)]
    machine_id: Text
    wall: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    default_interface: Text = ""
