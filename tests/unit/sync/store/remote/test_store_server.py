"""A shard of the store without sockets: what it refuses, how it decodes, how it takes steps."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import PeerLost
from phalanx.sync.state.layout import Layout, by_dtype, make_layout, trainable
from phalanx.sync.store.remote.store_client import (
    describe,
    group_options,
)
from phalanx.sync.store.remote.store_messages import (
    Contribute,
    Description,
    Encoded,
    LayoutOf,
    PieceOf,
    StoreRefused,
    TensorOf,
    read_request,
)
from phalanx.sync.store.remote.store_rounds import Rounds
from phalanx.sync.store.remote.store_shard import Decoders, Shard, byte_view

SIZE = 24


def _optimizer(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(6, 4).requires_grad_()], **{"lr": 1.0, **options})


def _layouts(optimizer: torch.optim.Optimizer, shards: int = 1) -> list[Layout]:
    return [make_layout(members, shards) for members in by_dtype(trainable(optimizer)).values()]


def _described(optimizer: torch.optim.Optimizer | None = None, *codecs: str) -> Description:
    optimizer = optimizer or _optimizer()
    return describe(optimizer, _layouts(optimizer), 0, codecs)


def _share(rank: int, step: int = 0, **more: Any) -> Contribute:
    groups = group_options(_optimizer())
    return Contribute("s", step, [0, 1, 2], rank, 1.0, groups, **{"used": [None], **more})


def _give(rounds: Rounds, share: Contribute, value: float) -> None:
    rounds.claim(share)[0].fill_(value)
    rounds.add(share)


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "LBFGS"},
        {"optimizer": "Optimizer"},
        {"groups": [{"lr": 0.1, "params": 3}]},
        {"first_values": {"lr": -1.0}},
        {"groups": []},
        {"first_values": {"closure": 1}},
        {"layouts": [LayoutOf("int64", [PieceOf(4, 0, 1, 0)])]},
        {"layouts": [LayoutOf("float32", [PieceOf(4, 1, 1, 0)])]},
    ],
)
def test_a_description_that_is_no_store_is_refused(changes: dict[str, Any]) -> None:
    fields = msgspec.structs.asdict(_described())
    with pytest.raises(StoreRefused):
        Shard(Description(**{**fields, **changes}))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_request_or_refused(header: bytes) -> None:
    try:
        read_request(header)
    except StoreRefused:
        return


def test_what_a_user_notes_in_a_group_stays_at_home() -> None:
    optimizer = _optimizer()
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    optimizer.param_groups[0]["initial_lr"] = object()
    assert group_options(optimizer)[0]["lr"] == 0.5
    assert "initial_lr" not in group_options(optimizer)[0]


@pytest.mark.parametrize(
    ("codec", "tensors"),
    [
        ("topk", [TensorOf("int32", [1 << 30]), TensorOf("float32", [1 << 30])]),
        ("topk", [TensorOf("int32", [1 << 39] * 4)]),
        ("topk", [TensorOf("object", [1])]),
    ],
)
def test_messages_beyond_the_gradient_are_refused_before_memory_is_taken(
    codec: str, tensors: list[TensorOf]
) -> None:
    with pytest.raises(StoreRefused):
        Decoders(_described(None, codec)).tensors(Encoded(0, [tensors]))
    with pytest.raises(StoreRefused):
        Decoders(_described(None, codec)).tensors(Encoded(1, [[]]))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    ("codec", "shapes"),
    [
        ("topk", [("int32", [2]), ("float32", [2])]),
        ("topk", [("float32", [3])]),
        ("int8", [("int8", [7]), ("float32", [1])]),
        ("powersgd:rank=1", [("float32", [0]), ("float32", [9, 1]), ("float32", [4, 1])]),
        ("fp16", [("float16", [5])]),
        ("fp16", []),
    ],
)
def test_what_cannot_be_decoded_is_refused_and_harms_nothing(
    codec: str, shapes: list[tuple[str, list[int]]]
) -> None:
    decoders, out = Decoders(_described(None, codec)), [torch.zeros(SIZE)]
    view = byte_view(out[0])
    encoded = Encoded(0, [[TensorOf(name, shape) for name, shape in shapes]])
    message = decoders.tensors(encoded)
    for tensor in message[0]:
        tensor.fill_(77)  # as an index: beyond the end
    with pytest.raises(StoreRefused):
        decoders.decode(encoded, message, out)
    assert out[0].shape == (SIZE,)
    out[0].fill_(1.0)
    assert bytes(view) == bytes(byte_view(torch.ones(SIZE)))  # still the same memory


# -- how a layout is cut --------------------------------------------------------------------


# -- steps that all contribute to -----------------------------------------------------------


def test_shares_are_summed_by_rank_whatever_the_order() -> None:
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        shard = Shard(_described())
        rounds = Rounds(shard)
        for rank in order:
            _give(rounds, _share(rank), [1e8, 1.0, -1e8][rank])
        results.append(shard.parameters[0].clone())
    assert results[0].equal(results[1])
    assert shard.version == 1


def test_a_worker_contributes_once_to_a_step_that_all_are_at() -> None:
    rounds = Rounds(Shard(_described()))
    _give(rounds, _share(0), 1.0)
    for wrong in (_share(0), _share(1, step=1), _share(3)):
        with pytest.raises(StoreRefused):
            rounds.claim(wrong)
    rounds.claim(_share(1))
    rounds.withdraw(_share(1))  # its connection broke
    _give(rounds, _share(1), 1.0)
    _give(rounds, _share(2), 1.0)
    assert rounds.wait(0, lambda: True) is None
    with pytest.raises(StoreRefused):
        rounds.claim(_share(0))
    rounds.reset()
    rounds.claim(_share(0))


def test_nobody_waits_for_who_is_gone_but_for_who_came_back() -> None:
    rounds = Rounds(Shard(_described()))
    _give(rounds, _share(0), 1.0)
    timer = threading.Timer(0.05, lambda: rounds.lose([1], "machine beta"))
    timer.start()
    with pytest.raises(PeerLost, match="machine beta"):
        rounds.wait(0, lambda: True)
    timer.join()
    with pytest.raises(PeerLost, match="machine beta"):
        rounds.wait(0, lambda: True)
    rounds.arrive([1])
    for rank in range(3):
        _give(rounds, _share(rank, step=1), 1.0)
    assert rounds.wait(1, lambda: True) is None


def test_whose_own_client_is_gone_stops_waiting() -> None:
    rounds = Rounds(Shard(_described()))
    _give(rounds, _share(0), 1.0)
    with pytest.raises(PeerLost):
        rounds.wait(0, lambda: False)
