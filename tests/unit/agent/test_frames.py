"""Frames between a controller and an agent."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import struct
from typing import Any

import pytest
from descriptors import many_open

from phalanx.agent import frames as agent_side
from phalanx.agent.frames import InvalidFrame, RequestProblem, field, inside, is_run
from phalanx.agent.wire import Bell, Gone, read_exactly
from phalanx.launch.link import agent_frames as our_side

HEADER = {"ask": "blob", "id": 7, "path": "ünï/ço de", "nothing": None}


def unpack_ours(data: bytes) -> tuple[dict[str, Any], bytes]:
    source = io.BytesIO(data)

    async def read(count: int) -> bytes:
        return source.read(count)

    return asyncio.run(our_side.unpack(read))


def test_both_sides_write_what_the_other_reads() -> None:
    assert unpack_ours(agent_side.pack(HEADER, b"\0\xff")) == (HEADER, b"\0\xff")
    read = io.BytesIO(our_side.pack(HEADER, b"\0\xff")).read
    assert agent_side.unpack(read) == (HEADER, b"\0\xff")


WRONG = {
    "header too long": struct.pack("!II", (1 << 20) + 1, 0),
    "payload too long": struct.pack("!II", 2, (4 << 20) + 1) + b"{}",
    "not JSON": struct.pack("!II", 3, 0) + b"{a}",
    "not UTF-8": struct.pack("!II", 4, 0) + b'"\xff"' + b" ",
    "no object": struct.pack("!II", 2, 0) + b"[]",
    "nested too deep": struct.pack("!II", 200_000, 0) + b"[" * 200_000,
    "empty": struct.pack("!II", 0, 0),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_wrong_frames_are_refused_by_both_sides(data: bytes) -> None:
    with pytest.raises(InvalidFrame):
        agent_side.unpack(io.BytesIO(data).read)
    with pytest.raises(our_side.WrongAgentFrame):
        unpack_ours(data)


def test_nothing_too_large_is_sent() -> None:
    with pytest.raises(RequestProblem):
        agent_side.pack({}, bytes((4 << 20) + 1))
    with pytest.raises(ValueError, match="too large"):
        our_side.pack({"a": "x" * (1 << 20)})


@pytest.mark.parametrize("kind, value", [(int, True), (int, "1"), (str, 1), (list, None)])
def test_a_field_of_the_wrong_kind_is_a_problem(kind: type, value: object) -> None:
    with pytest.raises(RequestProblem, match="invalid 'rank' in the request start"):
        field({"ask": "start", "rank": value}, "rank", kind)


def test_fields_from_a_machine_are_typed() -> None:
    exited = {"tell": "exited", "rank": 1, "code": -9}
    assert our_side.read_as(our_side.Exited, exited) == our_side.Exited(1, -9)
    with pytest.raises(our_side.WrongAgentFrame):
        our_side.read_as(our_side.Exited, {"rank": "1", "code": 0})


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../b", "a\0b", 7, "."])
def test_names_that_lead_out_are_refused(tmp_path: Any, name: object) -> None:
    with pytest.raises(RequestProblem, match="unsafe path"):
        inside(tmp_path, name)


def test_names_of_files_and_runs(tmp_path: Any) -> None:
    assert inside(tmp_path, "a\\b") == tmp_path / "a\\b"
    assert inside(tmp_path, "a/ü b") == tmp_path / "a" / "ü b"
    assert is_run("20260101-120000-mnist")
    assert not any(map(is_run, ["", ".", "..", "a/b", ".hidden", "a\nb", "x" * 256]))


def test_reading_with_more_than_1023_descriptors() -> None:
    with many_open():
        near, far = socket.socketpair()
        bell = Bell()
        with near, far:
            assert near.fileno() > 1023
            far.sendall(b"whole")
            assert read_exactly(near.fileno(), 5, 20.0, bell) == b"whole"
            with pytest.raises(Gone) as silent:
                read_exactly(near.fileno(), 1, 0.01, bell)
            bell.ring()
            with pytest.raises(Gone) as rung:
                read_exactly(near.fileno(), 1, 20.0, bell)
            bell.hush()
            far.close()
            with pytest.raises(Gone) as ended:
                read_exactly(near.fileno(), 1, 20.0, bell)
        assert [found.value.silent for found in (silent, rung, ended)] == [True, False, False]
        os.close(bell.descriptor)
        os.close(bell._rung)
