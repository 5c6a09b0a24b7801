"""Profiles that are kept: by content, and a damaged one is as good as none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from phalanx.core.files import cache_home
from phalanx.core.settings import RunSettings
from phalanx.launch.profile.kept_profiles import job_key, keep, read_kept
from phalanx.plan.job import JobProfile, MachineCosts, WorkCurve

COSTS = MachineCosts(work=WorkCurve(fixed=0.001, each=0.0001), update=0.0002)


def _profile(key: str) -> JobProfile:
    return JobProfile(
        key=key, gradient_bytes=8, state_bytes=8, batch=4, samples=9, epochs=2, costs={"a": COSTS}
    )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_damaged_one_is_written_anew() -> None:
    keep("k", "kind", _profile("k"))
    assert read_kept("k", "other kind") is None and read_kept("other", "kind") is None
    (file,) = (cache_home() / "profiles").iterdir()
    for damaged in (b"", b"{", b"[1]", b"\xff" * 100, file.read_bytes()[:-20]):
        file.write_bytes(damaged)
        assert read_kept("k", "kind") is None
    keep("k", "kind", _profile("k"))
    assert read_kept("k", "kind") == _profile("k")


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    keep("k", "kind", _profile("k"))
    assert read_kept("k", "kind") is None


def test_the_key_follows_script_modules_arguments_and_settings(tmp_path: Path) -> None:
    script, module = tmp_path / "train.py", tmp_path / "parts.py"
    script.write_text("import parts\n")
    module.write_text("x = 1\n")
    chosen = RunSettings()
    keys = [job_key(script, [], chosen)]
    keys.append(job_key(script, ["--rate", "1"], chosen))
    keys.append(job_key(script, [], msgspec.structs.replace(chosen, batch=7)))
    module.write_text("x = 2\n")
    keys.append(job_key(script, [], chosen))
    assert len(set(keys)) == 4
    module.write_text("x = 1\n")
    assert job_key(script, [], msgspec.structs.replace(chosen, seed=9)) == keys[0]
