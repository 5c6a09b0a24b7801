"""The grammar of strategy specs."""

from __future__ import annotations

import pytest

from phalanx.core.errors import InputError
from phalanx.core.spec import (
    STRATEGIES,
    Key,
    Traits,
    parse_spec,
    parse_specs,
    register_strategy,
    strategies,
)


def test_phases_and_their_ends() -> None:
    spec = parse_spec("allreduce@0.25/async@3e/allreduce")
    assert [p.name for p in spec.phases] == ["allreduce", "async", "allreduce"]
    first, second = spec.phases[0].until, spec.phases[1].until
    assert (first.share, second.epochs, spec.phases[2].until) == (0.25, 3, None)


def test_short_forms_and_aliases() -> None:
    assert parse_spec("switch:at=0.5").phases == parse_spec("allreduce@0.5/async").phases
    assert parse_spec("parameter_server").phases[0].name == "async"
    assert [s.text for s in parse_specs("single,switch:at=0.5")] == ["single", "switch:at=0.5"]


def test_codecs_and_options() -> None:
    phase = parse_spec("async:overlap=yes+topk:ratio=0.01").phases[0]
    assert phase.label == "async:overlap=yes+topk:ratio=0.01"
    assert (phase.codec.name, dict(phase.codec.options)) == ("topk", {"ratio": 0.01})
    first, second = parse_spec("allreduce+int8@0.5/ssp:bound=3").phases
    assert (first.label, second.label, second.codec) == ("allreduce+int8", "ssp:bound=3", None)


def test_a_policy_has_two_phases() -> None:
    spec = parse_spec("switch:on=straggler")
    assert spec.on_straggler
    assert [p.label for p in spec.phases] == ["allreduce", "async"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the strategy is empty"),
        ("allreduc", "unknown strategy 'allreduc'\nDid you mean 'allreduce'?"),
        ("allreduce:speed=2", "'allreduce' has no option 'speed'"),
        ("allreduce@0.5", "the last phase takes no end"),
        ("allreduce/async", "'allreduce' needs an end"),
        ("allreduce@2/async", "out of range: 2"),
        ("allreduce@half/async", "must be a number, not 'half'"),
        ("allreduce@0.7/async@0.3/allreduce", "end out of order"),
        ("switch", "does not say when to switch"),
        ("single@0.5/async", "'single' cannot be a phase"),
        ("pipeline:stages=2", "'pipeline' is not implemented"),
        ("ssp:bound=-1", "out of range: -1"),
        ("ssp:bound=3:bound=4", "'ssp' has 'bound' twice"),
        ("dssp:low=9:high=3", "low=9 above high=3"),
        ("groups:by=name", "'by' of 'groups' cannot be 'name'"),
        ("allreduce+int9", "unknown codec 'int9'\nDid you mean 'int8'?"),
        ("allreduce+topk:ratio=2", "out of range: 2"),
        ("single+int8", "'single' sends nothing"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_spec(text)


def test_options_are_read_and_checked() -> None:
    keys = {"every": Key(int, 1, 100), "mode": Key(str, choices=("fast", "exact"))}
    register_strategy("sometimes", "m:S", Traits("for a test", lockstep=True, keys=keys))
    try:
        phase = parse_spec("sometimes:every=8:mode=fast").phases[0]
        assert dict(phase.options) == {"every": 8, "mode": "fast"}
        assert phase.label == "sometimes:every=8:mode=fast"
        for text, message in [
            ("sometimes:every=0", "out of range: 0"),
            ("sometimes:every=x", "must be a whole number"),
            ("sometimes:every", "needs a value"),
            ("sometimes:evry=3", "Did you mean 'every'"),
            ("sometimes:mode=fats", "Did you mean 'fast'"),
        ]:
            with pytest.raises(InputError, match=message):
                parse_spec(text)
    finally:
        STRATEGIES._entries.pop("sometimes")
        strategies._TRAITS.pop("sometimes")
