"""Where phases end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.policies.switch_points import boundaries, segments


@given(st.floats(0.01, 0.99), st.integers(2, 9), st.integers(1, 500), st.integers(1, 64))
def test_segments_cover_each_epoch_and_phases_only_grow(
    share: float, epochs: int, samples: int, batch: int
) -> None:
    ends = boundaries(parse_spec(f"allreduce@{share}/async"), epochs, samples, batch)
    phases = []
    for epoch in range(epochs):
        parts = segments(epoch, samples, ends)
        assert [p.start for p in parts] == [0, *(p.end for p in parts[:-1])]
        assert parts[-1].end == samples
        phases += [p.phase for p in parts]
    assert phases == sorted(phases)
    (epoch, position) = ends[0]
    assert position % batch == 0
    assert -1e-6 <= epoch * samples + position - share * epochs * samples < batch + 1e-6 or (
        position == 0
    )


def test_a_point_behind_the_end_is_refused() -> None:
    with pytest.raises(InputError, match="switches after epoch 4, but there are only 4"):
        boundaries(parse_spec("allreduce@4e/async"), 4, 100, 8)


def test_a_share_needs_the_number_of_epochs() -> None:
    with pytest.raises(InputError, match="length is not known"):
        boundaries(parse_spec("switch:at=0.5"), None, 100, 8)
