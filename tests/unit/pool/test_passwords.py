"""Inline passwords: only from private files, and never in anything that is shown."""

from __future__ import annotations

import copy
import dataclasses
import traceback
from pathlib import Path

import pytest
from pydantic import ValidationError

from phalanx.core.errors import InputError
from phalanx.plan.plan import make_plan
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import Machine

SECRET = "hunter2-correct-horse"
TEXT = f"machines:\n  a: {{host: a.example, password: {SECRET}}}\n"


def write(folder: Path, text: str, mode: int) -> Path:
    path = folder / "my pool.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_refused_where_others_reach_the_file(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, TEXT, mode)
    with pytest.raises(InputError) as caught:
        read_blueprint(path)
    assert caught.value.cause.startswith(f"{path}:2:34: machine 'a': the file with")
    assert f"chmod 600 '{path}'" in caught.value.remedy
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_read_from_a_private_file_with_a_warning(tmp_path: Path, mode: int) -> None:
    pool = read_blueprint(write(tmp_path, TEXT, mode))
    secret = pool.machines[0].inline_password
    assert secret is not None and secret.get_secret_value() == SECRET
    (warning,) = pool.warnings
    assert "holds the password of a" in warning and SECRET not in warning


def test_one_warning_for_many_machines(tmp_path: Path) -> None:
    text = f"defaults: {{password: {SECRET}}}\nmachines: {{a: {{host: a}}, b: {{host: b}}}}"
    pool = read_blueprint(write(tmp_path, text, 0o600))
    assert [("a, b" in w) for w in pool.warnings] == [True]


def test_never_shown(tmp_path: Path) -> None:
    pool = read_blueprint(write(tmp_path, TEXT, 0o600))
    machine = pool.machines[0]
    credential = machine.password
    assert credential is not None
    plan = make_plan(pool.machines, workers=None, strategy="allreduce", selection="all", batch=None)
    shown = [
        *(f(x) for f in (repr, str, format) for x in (pool, machine, credential, plan)),
        pool.model_dump_json(),
        str(pool.model_dump()),
        str(machine.model_dump(mode="json")),
        str(dataclasses.asdict(credential)),
        repr(copy.deepcopy(machine)),
        plan.to_json(),
    ]
    assert [text for text in shown if SECRET in text] == []
    assert "(hidden)" in pool.model_dump_json()


@pytest.mark.parametrize(
    "password",
    [
        f"*{SECRET}",
        f"&{SECRET} &x",
        f"!{SECRET}",
        f"!{SECRET}!x y",
        f"%{SECRET}",
        f"@{SECRET}",
        f"[{SECRET}",
        f"{{{SECRET}",
        f'"{SECRET}\\q"',
        f'"{SECRET}',
        f"[{SECRET}]",
        f"#{SECRET}",
        f"env:{SECRET}",
        f"| {SECRET}",
        f"`{SECRET}",
        f"{SECRET}: {SECRET}",
        f"'{SECRET}' {SECRET}",
    ],
)
def test_never_in_the_answer_to_a_mistake(tmp_path: Path, password: str) -> None:
    text = f"machines:\n  a:\n    host: h\n    password: {password}\n"
    with pytest.raises(InputError) as caught:
        read_blueprint(write(tmp_path, text, 0o600))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_never_in_an_error_of_the_model() -> None:
    with pytest.raises(ValidationError) as caught:
        Machine.model_validate({"name": "a", "host": "h", "password": f"env:{SECRET}"})
    assert SECRET not in str(caught.value)
