"""Blueprints that are wrong: each mistake is one clear line with its place and its remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.errors import BAD_INPUT, InputError
from phalanx.pool.blueprint import read_blueprint


def refusal(folder: Path, text: str | bytes, name: str = "pool.yaml") -> InputError:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o600)
    with pytest.raises(InputError) as caught:
        read_blueprint(path)
    error = caught.value
    assert error.exit_code == BAD_INPUT
    assert "\n" not in error.cause and "\n" not in error.remedy
    assert error.cause.startswith(str(path))
    error.cause = error.cause.removeprefix(f"{folder}/")
    return error


def machine(fields: str) -> str:
    return f"machines:\n  a:\n    host: a.example\n    {fields}\n"


CASES = {
    "broken YAML": ("machines:\n  a: {host: [}\n", "pool.yaml:2:14: broken YAML", "Correct"),
    "a tab": ("machines:\n\ta: 1\n", "pool.yaml:2:1: broken YAML", "Correct"),
    "misspelt field": (machine("gpu: 1"), "pool.yaml:4:5: machine 'a' has no field 'gpu'", "gpus"),
    "misspelt default": (
        "defaults: {usr: x}\nmachines: {a: {host: a.example}}",
        "pool.yaml:1:12: the defaults has no field 'usr'",
        "Did you mean 'user'?",
    ),
    "misspelt section": (
        "machine: {}",
        "pool.yaml:1:1: 'machine' is not a field of a blueprint",
        "machines",
    ),
    "missing host": (
        "machines:\n  a: {gpus: 1}",
        "pool.yaml:2:3: machine 'a' has no 'host'",
        "an address, a host name, or 'here'",
    ),
    "no whole number": (
        machine("gpus: two"),
        "pool.yaml:4:11: machine 'a': gpus must be a whole number, 0 or more, not 'two'",
        "",
    ),
    "negative": (machine("cores: -1"), "4:12: machine 'a': cores must be a whole number, 1", ""),
    "port": (machine("port: 70000"), "port must be a port number, 1 to 65535", ""),
    "infinite": (machine("watts: 1e999"), "watts must be a number, 0 or more", ""),
    "speed zero": (machine("speed: 0"), "speed must be a number above 0", ""),
    "size without unit": (machine("memory: 16"), "memory must be a size with its unit", ""),
    "neither yes nor no": (
        machine("energy_efficient: maybe"),
        "must be yes or no, not 'maybe'",
        "",
    ),
    "fingerprint": (machine("host_key: MD5:00"), "host_key must be a fingerprint", ""),
    "host as option": ("machines: {a: {host: -oProxyCommand=x}}", "host must be an address", ""),
    "user as option": (machine("user: -l"), "user must be a user's name", ""),
    "list for value": (machine("gpus: [1]"), "4:11: machine 'a': gpus must be a single value", ""),
    "no value": (machine("gpus:"), "machine 'a': gpus has no value", "remove it"),
    "wrong default": (
        "defaults:\n  gpus: x\nmachines: {a: {host: a.example}}",
        "pool.yaml:2:9: defaults: gpus must be",
        "",
    ),
    "same name twice": (
        "machines:\n  a: {host: a.example}\n  a: {host: b.example}",
        "pool.yaml:3:3: 'a' is in machines twice (first in line 2)",
        "rename",
    ),
    "same field twice": (machine("host: b"), "4:5: 'host' is in machine 'a' twice", "Remove"),
    "same host twice": (
        "machines:\n  a: {host: x.example}\n  b: {host: X.example, port: 22}",
        "pool.yaml:3:3: 'a' and 'b' are the same machine (X.example, port 22)",
        "Remove one",
    ),
    "empty file": ("", "pool.yaml: the blueprint has no machines", "For example"),
    "no machines": ("machines: {}", "pool.yaml:1:1: the blueprint has no machines", "For example"),
    "list of machines": ("machines: [a]", "1:11: machines must be a mapping", "For example"),
    "a word": ("hello", "pool.yaml:1:1: the blueprint must be a mapping", "For example"),
    "name with a slash": ("machines: {../a: {host: a}}", "'../a' is not a machine name", "letters"),
    "name of a selection": (
        "machines: {gpus: {host: a}}",
        "'gpus' is not a machine name",
        "selections",
    ),
    "both forms": (
        "machines: {a: {host: a}}\nconnections: []",
        "pool.yaml:1:1: 'machines' cannot be used with 'connections'",
        "either",
    ),
    "two spellings": (
        'connections: [{"IP": a, "ip": b}]',
        "1:25: connection 1 has both 'IP' and 'ip'",
        "remove one",
    ),
    "original: misspelt": (
        'connections: [{"IP": a, "Usernam": b}]',
        "pool.yaml:1:25: connection 1 has no field 'Usernam'",
        "username",
    ),
    "original: no IP": ("connections: [{GPUS: 1}]", "1:15: connection 1 has no 'host'", ""),
    "merge": (machine("<<: {gpus: 1}"), "4:5: merge keys (<<) are not supported", "defaults"),
    "object tag": (machine("user: !!python/object:os.system x"), "user has a YAML tag", "quotes"),
    "deep": ("{a: " * 2_000, "pool.yaml: is nested too deeply", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_mistake(tmp_path: Path, case: str) -> None:
    text, cause, remedy = CASES[case]
    error = refusal(tmp_path, text)
    assert cause in error.cause
    assert remedy in error.remedy


JSON_CASES = {
    "comma": ('{"machines":\n  {"a": 1,,}}', "pool.json:2:11: broken JSON"),
    "YAML in a JSON file": ("machines: {a: {host: b}}", "pool.json:1:1: broken JSON"),
    "cut off": ('{"machines": {"a": {"host": "h"}', "pool.json:1:33: broken JSON"),
    "duplicate": (
        '{"machines": {"a": {"host": "x"},\n\t"a": {"host": "y"}}}',
        "pool.json:2:2: 'a' is in machines twice",
    ),
    "deep": ("[" * 100_000, "pool.json: is nested too deeply"),
    "empty": ("", "pool.json: the blueprint has no machines"),
}


@pytest.mark.parametrize("case", JSON_CASES)
def test_mistake_in_json(tmp_path: Path, case: str) -> None:
    text, cause = JSON_CASES[case]
    assert cause in refusal(tmp_path, text, "pool.json").cause


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: there is no such file"):
        read_blueprint(tmp_path / "nowhere.yaml")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        read_blueprint(tmp_path)


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match="is not a regular file"):
        read_blueprint(tmp_path / "pipe.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.touch(mode=0o000)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_blueprint(path)


def test_a_path_that_leads_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be read: Not a directory"):
        read_blueprint(tmp_path / "file" / "pool.yaml")


def test_too_large(tmp_path: Path) -> None:
    assert "larger than 1 MiB" in refusal(tmp_path, b"#" * (2**20 + 1)).cause


@pytest.mark.parametrize(
    ("content", "place"),
    [(b"a: 1\nb\xff", ":2:2: byte 0xff"), (b"a: 1\n\x00\x01", ":2:1: a character")],
)
def test_binary_garbage(tmp_path: Path, content: bytes, place: str) -> None:
    assert place in refusal(tmp_path, content).cause


def test_a_bomb_of_aliases_stays_small(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    text = "machines: {m: {host: h, gpus: {" + ", ".join(levels) + "}}}"
    assert "gpus must be a single value" in refusal(tmp_path, text).cause


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=60), name=st.sampled_from(["p.yaml", "p.json"]))
def test_whatever_is_in_the_file_is_answered_in_one_line(
    tmp_path: Path, content: bytes, name: str
) -> None:
    refusal(tmp_path, content, name)


VALID = json.dumps({"defaults": {"user": "u"}, "machines": {"a": {"host": "h", "gpus": 1}}})


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    at=st.integers(0, len(VALID) - 1),
    length=st.integers(0, 12),
    put=st.text("{}[]:,\"' \n\t*&!%@#<-?|>~x1", max_size=4),
)
def test_a_damaged_blueprint_is_read_or_refused(
    tmp_path: Path, at: int, length: int, put: str
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(VALID[:at] + put + VALID[at + length :])
    try:
        assert read_blueprint(path).machines
    except InputError as error:
        assert "\n" not in error.cause
