"""What members put among the run's values names no file: descriptors go from hand to hand."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.arena import memfd
from phalanx.sync.arena.remote import sharing
from phalanx.sync.arena.remote.coordinator import Coordinator
from phalanx.sync.arena.remote.coordinator_messages import Hello
from phalanx.sync.arena.remote.remote_arena import RemoteArena
from phalanx.sync.connect.listener import Listener
from phalanx.sync.hosts.membership import become_worker, greet

HERE, SECONDS = "127.0.0.1", 20.0
KEY = RunKey.new()


class Values(dict[str, bytes]):
    """Those of a run, between threads."""

    def put(self, key: str, value: bytes) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        deadline = time.monotonic() + SECONDS
        while key not in self:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self[key]

    def check(self) -> None: ...


def _join(port: int, results: list[object]) -> None:
    """As a worker does that means no harm."""
    try:
        results.append(
            become_worker(
                (HERE, port), KEY, process=1, processes=2, machine="m", address=HERE,
                host="one host", timeout=SECONDS,
            )
        )  # fmt: skip
    except PeerLost as lost:
        results.append(lost)


def test_a_member_cannot_make_another_write_into_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a file where the machine's memory is expected, and hands one out as well."""
    monkeypatch.setattr(sharing, "WAIT_SECONDS", 3.0)
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(memfd.CONTROL_BYTES * 2))
    before = precious.read_bytes()
    listener, over = Listener(HERE, KEY, name="coordinator"), threading.Event()
    results: list[object] = []
    home = partial(Coordinator(listener, 2).serve, lambda: not over.is_set())
    for work in (home, partial(_join, listener.port, results)):
        threading.Thread(target=work, daemon=True).start()
    channel, welcome = greet((HERE, listener.port), KEY, Hello(0, 2, "m", HERE, 1, "one host"))
    hostile = RemoteArena(channel, welcome.rank, 2)
    hostile.put("memory.0", str(precious).encode())
    file = os.open(precious, os.O_RDWR)
    give = partial(sharing.hand_out, file, "memory.0", [1], hostile, KEY)
    threading.Thread(target=give, daemon=True).start()
    deadline = time.monotonic() + SECONDS
    while not results and time.monotonic() < deadline:
        assert precious.read_bytes() == before, "a member wrote into somebody's file"
        time.sleep(0.05)
    over.set()
    os.close(file)
    assert isinstance(results[0], PeerLost) and "invalid memory descriptor" in results[0].cause
    assert precious.read_bytes() == before


@pytest.mark.parametrize("kind", ["file", "deleted file", "file in memory", "pipe", "small"])
def test_only_memory_of_ours_is_taken(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        _, descriptor = os.pipe()
    elif kind == "small":
        descriptor = os.memfd_create("phalanx")
    else:
        folder = Path("/dev/shm") if kind == "file in memory" else tmp_path
        path = folder / f"phalanx-test-{os.getpid()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(path, memfd.CONTROL_BYTES)
        if kind == "deleted file":
            path.unlink()
    try:
        with pytest.raises(PeerLost, match="invalid memory descriptor"):
            memfd.checked(descriptor)
    finally:
        Path(f"/dev/shm/phalanx-test-{os.getpid()}").unlink(missing_ok=True)
    made = memfd.create(2)
    assert memfd.checked(made) == made
    os.close(made)


def test_descriptors_go_from_hand_to_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    values, taken = Values(), []
    taker = threading.Thread(target=lambda: taken.append(sharing.take("x", 1, values, KEY)))
    taker.start()
    values.get("x.1")
    monkeypatch.setattr(sharing, "WAIT_SECONDS", 1.0)
    sharing.hand_out(0, "x", [1], values, RunKey.new())  # another run's
    made = memfd.create(1)
    sharing.hand_out(made, "x", [1], values, KEY)
    taker.join(SECONDS)
    assert os.fstat(taken[0]).st_ino == os.fstat(made).st_ino
    assert not os.get_inheritable(taken[0])
    for number in (made, taken[0]):
        os.close(number)


def test_a_descriptor_is_not_sent_to_a_file_that_a_member_names(tmp_path: Path) -> None:
    values, path = Values(), str(tmp_path / "service")
    values.put("x.1", path.encode())
    heard = []
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        Path(path).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, kind) as service:
            service.bind(path)
            if kind == socket.SOCK_SEQPACKET:
                service.listen()
            service.setblocking(False)
            with pytest.raises(PeerLost, match="no process of this user"):
                sharing.hand_out(0, "x", [1], values, KEY)
            with suppress(BlockingIOError):
                heard.append(service.accept() if kind == socket.SOCK_SEQPACKET else service.recv(9))
    assert not heard


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_descriptor_is_neither_sent_to_another_user_nor_taken_from_one() -> None:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(b"")
            listening.listen()
            os.write(writes, listening.getsockname())
            listening.settimeout(SECONDS)
            stolen = 1
            try:
                with listening.accept()[0] as sender:
                    sender.settimeout(SECONDS)
                    stolen = len(socket.recv_fds(sender, 64, 1)[1])
            finally:
                os._exit(stolen)
    values = Values({"x.1": os.read(reads, 64)})
    with pytest.raises(PeerLost, match="no process of this user"):
        sharing.hand_out(0, "x", [1], values, KEY)
    assert os.waitpid(child, 0)[1] == 0, "another user got the descriptor"
    os.close(reads)
    os.close(writes)
