"""What a search for the point of a switch trains at each point of its grid."""

from __future__ import annotations

import pytest

from phalanx.cli.request.tuning_specs import Specs


@pytest.mark.parametrize(
    ("before", "after", "reverse", "found"),
    [
        ("allreduce", "async", False, ["async", "switch:at=0.5", "allreduce"]),
        ("bsp", "ssp:bound=2", False, ["ssp:bound=2", "bsp@0.5/ssp:bound=2", "bsp"]),
        ("async", "allreduce", True, ["async", "async@0.5/allreduce", "allreduce"]),
        ("dssp", "bsp", True, ["dssp", "dssp@0.5/bsp", "bsp"]),
        ("async", "ssp", False, ["ssp", "async@0.5/ssp", "async"]),
    ],
)
def test_the_last_point_is_the_synchronous_one(
    before: str, after: str, reverse: bool, found: list[str]
) -> None:
    specs = Specs.read(before, after, 2)
    assert [specs.of(point) for point in range(3)] == found
    assert specs.reverse is reverse


def test_a_point_counts_the_synchronous_parts() -> None:
    there, back = Specs.read("allreduce", "async", 10), Specs.read("async", "allreduce", 10)
    assert (there.of(2), there.share(2)) == ("switch:at=0.2", 0.2)
    assert (back.of(2), back.share(2)) == ("async@0.8/allreduce", 0.8)
