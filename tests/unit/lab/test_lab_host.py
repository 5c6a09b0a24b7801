"""What a lab needs of its host, what a machine of it may be limited to, and its record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import python
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError, MachineError
from phalanx.lab import cgroups, needs, state
from phalanx.lab.cgroups import quota_of
from phalanx.lab.first_process import moved_home
from phalanx.lab.lab import cores_of
from phalanx.lab.limits import check_sum, read_memory, read_quotas, read_rate, read_rates
from phalanx.lab.state import LabState, MachineState

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_root_every_verb_is_refused() -> None:
    code = f"import os; os.setuid({NOBODY}); from phalanx.cli.main import invoke\n"
    code += "print([invoke(['lab', *w.split()]) for w in ('up', 'down', 'status', 'cut m1')])"
    ended = python(
        # Imported first, because nobody may be unable to read the program.
        "-c",
        f"import phalanx.cli.main, phalanx.lab.lab, rich.console\n{code}",
    )
    assert ended.stdout.strip() == "[2, 2, 2, 2]", ended.stderr
    assert ended.stderr.count("error: a lab needs root") == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="root is checked first")
def test_a_missing_command_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needs.PACKAGES, "no-such-command", "some-package")
    with pytest.raises(InputError) as caught:
        needs.check_host()
    assert "no-such-command" in caught.value.cause
    assert "apt-get install" in caught.value.remedy
    assert "some-package" in caught.value.remedy


def test_a_failing_command_is_told_in_its_own_words() -> None:
    with pytest.raises(MachineError, match=r"ssh-keygen.*failed: .*no-such-file"):
        needs.call(["ssh-keygen", "-lf", "no-such-file"])


def _tree(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_groups_of_version_1_lie_below_our_own(tmp_path: Path) -> None:
    mount = _tree(tmp_path, "cpu/cgroup.procs", "memory/a/b/cgroup.procs")
    (tmp_path / "ours").write_text("3:memory:/a/b\n2:cpu,cpuacct:/\n0::/\n")
    found = cgroups.parents("x", mount, tmp_path / "ours")
    assert found == [mount / "cpu/phalanx-lab-x", mount / "memory/a/b/phalanx-lab-x"]


def test_a_missing_controller_is_told(tmp_path: Path) -> None:
    mount = _tree(tmp_path, "cpu/cgroup.procs")
    (tmp_path / "ours").write_text("2:cpu:/\n")
    with pytest.raises(InputError, match="no control group 'memory'"):
        cgroups.parents("x", mount, tmp_path / "ours")


def test_version_2_has_one_tree_and_hands_controllers_on(tmp_path: Path) -> None:
    mount = _tree(tmp_path, "cgroup.controllers", "cgroup.subtree_control")
    (parent,) = cgroups.parents("x", mount)
    _tree(parent, "cgroup.subtree_control", "m1/cpu.max", "m1/memory.max")
    cgroups.make_parent(parent)
    assert (mount / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert (parent / "cgroup.subtree_control").read_text() == "+cpu +memory"
    cgroups.limit_cpu([parent / "m1"], 50)
    cgroups.limit_memory([parent / "m1"], 1024)
    assert (parent / "m1/cpu.max").read_text() == "5000 10000"
    assert (parent / "m1/memory.max").read_text() == "1024"
    cgroups.limit_cpu([parent / "m1"], None)
    assert (parent / "m1/cpu.max").read_text() == "max 10000"


def _made(name: str) -> LabState:
    machine = MachineState("m1", "10.77.0.2", "plab1p1", ("/a", "/b"), cpu=50.0, pid=7, started=9)
    return LabState(name, "plab1", "10.77.0.0/24", "10.77.0.1", ("/",), [machine], rate=1e9)


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    home = tmp_path / "labs"
    with state.alone(home):
        state.claim("one", home)
    assert state.read("one", home) is None
    state.write(_made("one"), home)
    assert state.read("one", home) == _made("one")
    with pytest.raises(InputError, match="already"):
        state.claim("one", home)
    with pytest.raises(InputError) as caught:
        state.read("on", home)
    assert caught.value.remedy == "Did you mean 'one'?"
    state.forget("one", home)
    assert not home.exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a" * 33, "a b", "a\n"])
def test_a_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a lab"):
        state.folder_of(name)


def test_only_root_moves_to_the_private_home() -> None:
    assert moved_home("root:x:0:0:root:/root:/bin/bash") == "root:x:0:0:root:/run/home:/bin/bash"
    assert moved_home("sshd:x:101:1::/run/sshd:/bin/false").split(":")[5] == "/run/sshd"


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
