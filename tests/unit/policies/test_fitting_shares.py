"""Parts of a batch with which all are done at the same moment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.policies.fitting_shares import fitting_shares


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(0, 0.1), st.floats(1e-5, 0.1)), min_size=1, max_size=8),
    st.floats(1, 1e4),
)
def test_fitting_shares_sum_up_and_end_together(
    costs: list[tuple[float, float]], batch: float
) -> None:
    found = fitting_shares(costs, batch)
    assert sum(found) == pytest.approx(batch)
    ends = [
        fixed + each * n for (fixed, each), n in zip(costs, found, strict=True) if n > 1e-6 * batch
    ]
    assert max(ends) == pytest.approx(min(ends), rel=1e-3)
