"""What a machine of a lab may be limited to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.lab.cgroups import quota_of
from phalanx.lab.lab import cores_of
from phalanx.lab.limits import check_sum, read_memory, read_quotas, read_rate, read_rates


@pytest.mark.parametrize(
    ("text", "rate"), [("1gbit", 1e9), ("100 Mbit", 1e8), ("2.5gbit", 2.5e9), (1e6, 1e6)]
)
def test_rates_are_bits_per_second(text: str | float, rate: float) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize("text", ["5", "fast", "1gb", "-1mbit", "1kbit", "nangbit", float("nan")])
def test_other_rates_are_refused(text: str | float) -> None:
    with pytest.raises(InputError, match="not a link rate"):
        read_rate(text)


def test_memory_has_a_unit_and_is_enough_for_a_machine() -> None:
    assert read_memory("4GiB") == 4 * 1024**3
    for wrong in ("4", "much", "1MiB"):
        with pytest.raises(InputError, match="not a memory size"):
            read_memory(wrong)


def test_one_quota_is_for_every_machine() -> None:
    assert read_quotas("25", 3) == [25, 25, 25]
    assert read_quotas([60, 30], 2) == [60, 30]
    assert read_quotas(None, 2) == [None, None]


@pytest.mark.parametrize("text", ["60,30", "60,x,1", "0", "-5,5,5", "nan", "inf"])
def test_other_quotas_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_quotas(text, 3)


def test_quotas_beyond_the_cores_are_refused_with_the_sums() -> None:
    check_sum([100, 60, 40, None], cores=2)
    with pytest.raises(InputError) as caught:
        check_sum([100, 100, 50], cores=2)
    assert caught.value.cause == (
        "quotas 100 + 100 + 50 = 250 % of a core, but this host has 2 cores (200 %)"
    )
    assert caught.value.remedy.endswith("--cpu 79,79,40")


@given(quotas=st.lists(st.floats(2, 400), min_size=1, max_size=20), cores=st.integers(1, 64))
def test_the_advice_for_too_much_is_enough(quotas: list[float], cores: int) -> None:
    try:
        check_sum(quotas, cores)
    except InputError as error:
        advice = read_quotas(error.remedy.rpartition(" ")[2], len(quotas))
        check_sum(advice, cores)
        assert sum(quotas) > 100 * cores


@given(percent=st.floats(1, 6400))
def test_the_kernel_takes_every_quota(percent: float) -> None:
    quota, period = quota_of(percent)
    assert quota >= 1000
    assert 1000 <= period <= 1_000_000
    assert quota / period == pytest.approx(percent / 100, rel=0.001)


@given(percent=st.floats(1, 6400), host=st.integers(1, 64))
def test_a_machine_has_cores_for_its_quota(percent: float, host: int) -> None:
    cores = cores_of(percent, host)
    assert 1 <= cores <= host
    assert cores == host or 100 * (cores - 1) < percent <= 100 * cores


def test_links_have_a_common_rate_and_rates_of_their_own() -> None:
    assert read_rates(None, 2) == (None, [None, None])
    assert read_rates(1e6, 2) == (1e6, [1e6, 1e6])
    assert read_rates("1gbit", 2) == (1e9, [1e9, 1e9])
    assert read_rates("m3=100mbit", 3) == (None, [None, None, 1e8])
    assert read_rates("m3=100mbit, 1gbit,m1=10mbit", 3) == (1e9, [1e7, 1e9, 1e8])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m4=100mbit", "no machine 'm4'"),
        ("1gbit,100mbit", "2 rates without a machine"),
        ("m1=fast", "not a link rate"),
        ("m1=", "not a link rate"),
    ],
)
def test_other_lists_of_rates_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_rates(text, 3)
