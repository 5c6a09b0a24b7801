"""Every name that a spec can say leads to an implementation, and the other way round."""

from __future__ import annotations

import inspect

import pytest

from phalanx.core.spec import STRATEGIES, known_strategies
from phalanx.core.spec.codecs import CODECS, known_codecs
from phalanx.core.spec.strategies import ALIASES


def test_names_and_traits_are_of_the_same_strategies_and_codecs() -> None:
    assert STRATEGIES.names() == sorted(known_strategies())
    assert CODECS.names() == sorted(known_codecs())
    assert set(ALIASES.values()) <= set(known_strategies())


@pytest.mark.parametrize("name", known_strategies())
def test_a_strategy_has_an_implementation_that_takes_its_options(name: str) -> None:
    taken = inspect.signature(STRATEGIES.get(name)).parameters
    assert set(known_strategies()[name].keys) <= set(taken)


@pytest.mark.parametrize("name", known_codecs())
def test_a_codec_has_an_implementation_that_takes_its_options(name: str) -> None:
    taken = inspect.signature(CODECS.get(name)).parameters
    assert set(known_codecs()[name].keys) <= set(taken)
