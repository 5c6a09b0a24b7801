"""The parameter store over real connections to real server processes on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from threads_at_once import at_once
from torch import Tensor
from wire_bytes import gradient_bytes

from phalanx.core.errors import InputError, PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.core.spec.codecs import parse_codec
from phalanx.sync.arena.clock import MonotonicClock
from phalanx.sync.codec.make import make_compressor, parts_of
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.state.replica import Masks, Replica
from phalanx.sync.store.remote.store_client import Share, StoreClient, describe, group_options
from phalanx.sync.store.remote.store_messages import STORE, Open, Push, pack
from phalanx.sync.store.remote.store_process import ServerProcess
from phalanx.sync.store.remote.store_shard import byte_view
from phalanx.sync.strategy import Timing

LOOPBACK = "127.0.0.1"
TO_STORE = Introduction(STORE)
SHAPES = [(9, 7), (40,), (6, 5, 2), (1,)]
STEPS = 5
Kind = type[torch.optim.Optimizer]


@pytest.fixture(scope="module")
def key() -> RunKey:
    return RunKey.new()


@pytest.fixture(scope="module")
def servers(key: RunKey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    temporary = tmp_path_factory.mktemp("servers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        started = [ServerProcess(key, LOOPBACK) for _ in range(2)]
    yield started
    assert [server.close() for server in started] == [0, 0]  # they end with their input
    assert not list(temporary.iterdir()), "torch's compiler would leave a folder there"


class Worker:
    """A model's optimizer, flat gradients and parameters, and a client of its own."""

    def __init__(
        self,
        servers: list[ServerProcess],
        key: RunKey,
        name: str,
        optimizer: torch.optim.Optimizer,
        codecs: tuple[str, ...] = (),
        rank: int = 0,
        channels: list[Channel] | None = None,
    ) -> None:
        self.channels = channels or [connect(LOOPBACK, s.port, key, TO_STORE) for s in servers]
        self.replica = Replica(optimizer, shards=1)
        self.flats = self.replica.private_flats()
        self.replica.copy_out(self.flats)
        self.gradients = [torch.zeros_like(flat) for flat in self.flats]
        self.everything: Masks = [None] * len(self.flats)
        self.codecs = [parse_codec(text) for text in codecs]
        self.client = StoreClient(
            self.channels,
            [threading.Lock() for _ in self.channels],
            name,
            optimizer,
            self.replica.layouts,
            MonotonicClock(),
            self.codecs,
        )
        self.client.open(f"machine {rank}", [rank])

    def load(self) -> None:
        state: dict[str, Tensor] = {f"parameters.{i}": f for i, f in enumerate(self.flats)}
        for i, name in self.client._names():
            state.setdefault(name, torch.zeros_like(self.flats[i]))
        for i, layout in enumerate(self.replica.layouts):
            state[f"steps.{i}"] = torch.zeros(len(layout.places), dtype=torch.float64)
        self.client.load(state)

    def push(self, rate_factor: float = 1.0, masks: Masks | None = None) -> Timing:
        timing = Timing()
        self.client.push(self.gradients, masks or self.everything, rate_factor, timing, self.flats)
        return timing

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


@pytest.fixture
def made(request: pytest.FixtureRequest, servers: list[ServerProcess], key: RunKey) -> Any:
    """Makes workers of a store that is this test's own."""
    workers: list[Worker] = []

    def make(optimizer: torch.optim.Optimizer, count: int | None = None, **more: Any) -> Worker:
        worker = Worker(servers[:count], key, request.node.name[:200], optimizer, **more)
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.close()


def _parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in SHAPES]


def _sgd(rate: float = 1.0, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(_parameters(), lr=rate, **options)


def _grouped(kind: Kind, options: dict[str, Any]) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """Two groups, two types of numbers."""
    parameters = [*_parameters(), *_parameters(torch.float64)]
    groups = [
        {"params": parameters[::2], "lr": 0.05},
        {"params": parameters[1::2], "weight_decay": 0.1},
    ]
    return parameters, kind(groups, **options)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}),
    ],
)
def test_it_trains_as_the_optimizer_alone_does(made: Any, kind: Kind, options: Any) -> None:
    """With groups, two types, a schedule, and parameters that are not always used."""
    parameters, reference = _grouped(kind, options)
    worker = made(_grouped(kind, options)[1])
    worker.load()
    for step in range(STEPS):
        for group, mine in zip(
            reference.param_groups, worker.replica.optimizer.param_groups, strict=True
        ):
            group["lr"] *= 0.9
            mine["lr"] *= 0.9
        skipped = parameters[step % len(parameters)]
        for i, parameter in enumerate(parameters):
            parameter.grad = None if parameter is skipped else torch.full_like(parameter, i - 3.0)
        masks = _fill(worker, reference)
        reference.step()
        timing = worker.push(masks=masks)
        assert timing.staleness == 0
    worker.replica.bind(worker.flats)
    mine = [p for group in worker.replica.optimizer.param_groups for p in group["params"]]
    theirs = [p for group in reference.param_groups for p in group["params"]]
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-6, atol=1e-6)


def _fill(worker: Worker, reference: torch.optim.Optimizer) -> Masks:
    """The reference's gradients into the worker's flat ones."""
    masks: Masks = []
    shadow = Replica(reference, shards=1)
    for layout, flat, parameters in zip(
        shadow.layouts, worker.gradients, shadow.parameters, strict=True
    ):
        flat.zero_()
        for place, parameter in zip(layout.places, parameters, strict=True):
            if parameter.grad is not None:
                place.view(flat).copy_(parameter.grad)
        masks.append(bytes(p.grad is not None for p in parameters))
    return masks


def test_workers_of_a_host_share_a_copy(made: Any) -> None:
    """Each has its own client; one lock per server keeps the copy of the parameters whole."""
    first = made(_sgd())
    first.flats[0].zero_()
    first.load()
    locks = [threading.Lock() for _ in first.channels]
    versions = torch.full((len(locks),), -1)

    def train() -> None:
        client = StoreClient(
            first.channels,
            locks,
            first.client._name,
            first.replica.optimizer,
            first.replica.layouts,
            MonotonicClock(),
            versions=versions,
        )
        ones = torch.ones_like(first.flats[0])
        for _ in range(25):
            client.push([ones], [None], 1.0, Timing(), first.flats)

    at_once([train] * 3)
    assert first.flats[0].eq(-75.0).all()
    assert versions.tolist() == [76, 76]  # the loading, and every push


def test_stale_pushes_are_counted_and_unchanged_parameters_not_sent(made: Any) -> None:
    slow, fast = made(_sgd(), rank=0), made(_sgd(), rank=1)
    slow.load()
    slow.client.pull(slow.flats)
    for _ in range(3):
        fast.push()
    assert slow.push().staleness == 3
    slow.flats[0].fill_(torch.nan)
    slow.client.pull(slow.flats)
    assert slow.flats[0].isnan().all()
    fast.push()
    slow.client.pull(slow.flats)
    assert slow.flats[0].isfinite().all()


def test_state_comes_back_as_it_was_given(made: Any) -> None:
    worker = made(_grouped(torch.optim.Adam, {"lr": 0.01})[1])
    torch.manual_seed(0)
    given: dict[str, Tensor] = {}
    for i, layout in enumerate(worker.replica.layouts):
        for name in ("parameters", "exp_avg", "exp_avg_sq"):
            given[f"{name}.{i}"] = torch.rand(layout.size, dtype=layout.dtype)
        given[f"steps.{i}"] = torch.arange(len(layout.places)).double()
    worker.client.load(given)
    found = worker.client.save()
    assert found.keys() == given.keys()
    assert all(found[name].equal(given[name]) for name in given)
    into = {"parameters.0": worker.flats[0]}
    assert worker.client.save(into)["parameters.0"] is worker.flats[0]


@pytest.mark.parametrize("codec", ["fp16", "int8", "int4", "topk:ratio=0.1", "powersgd:rank=1"])
@pytest.mark.parametrize("count", [1, 2])
def test_codecs_give_the_server_what_the_sender_sees(made: Any, codec: str, count: int) -> None:
    shapes = [(40, 30), (17,)]
    torch.manual_seed(1)
    parameters = [torch.zeros(shape).requires_grad_() for shape in shapes]
    worker = made(torch.optim.SGD(parameters, lr=1.0), count, codecs=("bf16", codec))
    worker.load()
    worker.gradients[0].normal_()
    spec = worker.codecs[1]
    payloads = [
        make_compressor(spec, parts_of(layout, shard), tensor.numel(), tensor.dtype, 7).compress(
            tensor
        )
        for _, layout, shard, tensor in worker.client.streams(worker.gradients)
    ]
    seen = worker.gradients[0].clone()  # compressing leaves there what receivers see
    timing = Timing()
    worker.client.push(worker.gradients, [None], 1.0, timing, worker.flats, payloads, spec)
    torch.testing.assert_close(worker.flats[0], -seen)
    expected = gradient_bytes(worker.client.layouts, spec)
    assert expected <= timing.bytes_sent <= expected + 600 * count


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_synchronous_step_takes_the_weighted_mean(
    made: Any, count: int, clip: float | None
) -> None:
    reference = _sgd(0.1, momentum=0.9)
    workers = [made(_sgd(0.1, momentum=0.9), count, rank=rank) for rank in range(3)]
    workers[0].load()
    weights = [3.0, 1.0, 0.0]
    for step in range(3):
        shares = [torch.randn_like(w.gradients[0]) * w_ for w, w_ in zip(workers, weights)]  # noqa: B905
        mean = sum(shares[1:], shares[0]) / sum(weights)
        shadow = Replica(reference, shards=1)
        for place, parameter in zip(shadow.layouts[0].places, shadow.parameters[0], strict=True):
            parameter.grad = place.view(mean).clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(shadow.parameters[0], clip)
        reference.step()
        _contribute_all(workers, shares, weights, step, clip)
        flat = shadow.private_flats()
        shadow.copy_out(flat)
        for worker in workers:
            torch.testing.assert_close(worker.flats[0], flat[0], rtol=1e-5, atol=1e-6)


def _contribute_all(
    workers: list[Worker], shares: list[Tensor], weights: list[float], step: int, clip: float | None
) -> None:
    def contribute(rank: int) -> None:
        worker = workers[rank]
        worker.gradients[0].copy_(shares[rank])
        empty = weights[rank] == 0.0
        used: Masks = [bytes(len(SHAPES))] if empty else [None]
        share = Share(step, range(len(workers)), rank, weights[rank], used, clip, empty)
        worker.client.contribute(share, worker.gradients, Timing(), worker.flats)

    at_once([partial(contribute, rank) for rank in range(len(workers))])


def test_another_model_is_refused(made: Any) -> None:
    made(_sgd())
    with pytest.raises(InputError, match="not the one that the store was opened with"):
        made(torch.optim.SGD(_parameters()[:2], lr=1.0))


def test_wrong_sizes_end_the_connection_and_not_the_server(
    made: Any, servers: list[ServerProcess], key: RunKey, request: pytest.FixtureRequest
) -> None:
    worker = made(_sgd(), 1)
    worker.load()
    name = request.node.name
    opening = Open(name, describe(worker.replica.optimizer, worker.client.layouts, 0, []))
    push = Push(name, group_options(worker.replica.optimizer), [None])
    before = worker.client.save()["parameters.0"]
    gradient = byte_view(torch.ones(before.numel()))
    hostile = [
        (pack(push), gradient[:-4]),
        (pack(push), bytes(gradient) + b"more"),
        (pack(Push(name, [], [None])), gradient),
        (pack(Push(name, push.groups, [b"\1"])), gradient),
        (pack(Push("another", push.groups, [None])), gradient),
        (b"\xc1 no message", b""),
    ]
    for header, payload in hostile:
        channel = connect(LOOPBACK, servers[0].port, key, TO_STORE)
        channel.send(pack(opening))
        _drain(channel)
        channel.send(header, payload)
        with pytest.raises(PeerLost):
            for _ in range(3):
                _drain(channel)
        channel.close()
    assert worker.client.save()["parameters.0"].equal(before)


def _drain(channel: Channel) -> None:
    _, size = channel.receive()
    channel.skip(size)


def test_half_a_push_is_no_push(made: Any, servers: list[ServerProcess], key: RunKey) -> None:
    """The client is a process that is killed in the middle of sending."""
    worker = made(_sgd(), 1)
    worker.load()
    before = worker.client.save()["parameters.0"]
    name = worker.client._name
    layouts = worker.client.layouts
    opening = pack(Open(name, describe(worker.replica.optimizer, layouts, 0, []), "", [7]))
    push = pack(Push(name, group_options(worker.replica.optimizer), [None]))
    script = _HALF_PUSH.format(
        port=servers[0].port, opening=opening, push=push, size=before.numel() * 4
    )
    environment = {**os.environ, "PHALANX_KEY": key.text()}
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"half\n"
    child.kill()
    child.wait(10.0)
    assert worker.client.save()["parameters.0"].equal(before)
    worker.gradients[0].fill_(1.0)
    worker.push()
    torch.testing.assert_close(worker.flats[0], before - 1.0)


_HALF_PUSH = """
import os, time
from phalanx.core.run_folder.run_key import key_from
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.channel import _PREFIX
channel = connect("127.0.0.1", {port}, key_from(os.environ), Introduction("store"))
channel.send({opening!r})
_, size = channel.receive()
channel.skip(size)
push = {push!r}
frame = _PREFIX.pack(len(push), {size}) + push + b"\\x7f" * ({size} // 2)
channel.send_raw([memoryview(frame)])
print("half", flush=True)
time.sleep(60)
"""


def test_nothing_of_a_fenced_worker_is_applied_and_what_was_is_told(made: Any) -> None:
    lost, other = made(_sgd(), rank=1), made(_sgd(), rank=0)
    lost.load()
    for worker in (lost, other):
        worker.gradients[0].fill_(1.0)

    def push(worker: Worker, rank: int, total: int) -> None:
        worker.client.push(
            worker.gradients, worker.everything, 1.0, Timing(), worker.flats, origin=(rank, total)
        )

    push(lost, 1, 16)
    push(lost, 1, 32)
    assert other.client.fence(1) == [32, 32]
    push(other, 0, 16)
    before = other.flats[0].clone()
    with pytest.raises(InputError, match="worker 1 was considered lost"):
        push(lost, 1, 48)
    other.client.pull(other.flats)
    assert torch.equal(other.flats[0], before)
    assert other.client.fence(1) == [32, 32], "decided once"
