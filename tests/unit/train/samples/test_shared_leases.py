"""Members of a group read parts of the same chunks, whatever each of them knows."""

from __future__ import annotations

from typing import Any

from scripted import scripted

from phalanx.policies.sample_assignment import Segment
from phalanx.train.samples.shared_leases import SharedLeases


def test_members_agree_on_a_chunk_although_shares_change_in_between() -> None:
    def work(rank: int, arena: Any) -> tuple[int, float, int]:
        claims = SharedLeases(arena)
        claims.begin_teams()
        shares = [0.25, 0.25] if rank == 0 else [0.2, 0.2]
        arena.sleep(float(rank))
        want = round(100 * sum(shares))
        found = claims.next_of_team(0, Segment(0, 1000, 0), want, [0, 1], shares)
        return found.samples, found.share, found.whole

    assert scripted(2, work, 0) == [(25, 0.5, 50), (25, 0.5, 50)]


def test_a_new_pass_begins_anew_for_a_member_that_had_read_ahead() -> None:
    def work(rank: int, arena: Any) -> list[int]:
        claims, seen = SharedLeases(arena), []
        claims.begin_teams()
        for _ in range(5 + rank):
            claims.next_of_team(0, Segment(0, 1000, 0), 20, [0, 1], [0.5, 0.5])
        arena.barrier()
        segment = Segment(0, 200, 0)
        while found := claims.next_of_team(1, segment, 20, [0, 1], [0.5, 0.5]):
            seen.extend(range(found.start, found.end))
        return seen

    first, second = scripted(2, work, 0)
    assert sorted(first + second) == list(range(200))
    assert len(first) == len(second)
