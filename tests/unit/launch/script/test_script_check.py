from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.launch.script.script_check import check_script, is_adopted, starts_no_group


def make(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "train.py"


@pytest.mark.parametrize(
    "text",
    [
        "import phalanx\nphalanx.fit(1)",
        "import phalanx as p\nrun = p.join(1, 2)",
        "from phalanx import fit\nfit(1)",
        "from phalanx import *\njoin(1)",
        "from phalanx.train.api.fit import fit as train\ntrain()",
        "import phalanx\ngetattr(phalanx, 'fit')()",
        "import importlib\nimportlib.import_module('whatever')",
        "def broken(:",
        "\0",
    ],
)
def test_accepted(tmp_path: Path, text: str) -> None:
    script = make(tmp_path, train=text)
    assert check_script(script) == script


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(', '.join('ab'))",
        "# phalanx.fit\n'''phalanx.fit'''\nx = 1",
        "import phalanx\nprint(phalanx.__version__)",
        "import missing_module",
        "import importlib.metadata\nprint(importlib.metadata.version('torch'))",
        "import os, phalanx\ntrain = phalanx.data.load('digits')\nprint(os.path.join('a', 'b'))",
        "from phalanx import data\nmodel.fit()",
        "import phalanx as p\nprint(p.accuracy, ', '.join('ab'))",
    ],
)
def test_a_script_without_fit_or_join(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        check_script(make(tmp_path, train=text))
    assert "calls neither phalanx.fit nor phalanx.join" in caught.value.cause
    assert "phalanx.fit(model" in caught.value.remedy


@pytest.mark.parametrize(
    "files",
    [
        {"train": "import helper", "helper": "import phalanx\nphalanx.fit()"},
        {"train": "from a import b", "a": "import c", "c": "import a, phalanx\nphalanx.fit()"},
        {"train": "import p.q", "p____init__": "", "p__q": "from phalanx import fit"},
        {
            "train": "from p import q",
            "p____init__": "",
            "p__q": "from . import r",
            "p__r": "from phalanx import fit",
        },
    ],
)
def test_modules_beside_the_script_count(tmp_path: Path, files: dict[str, str]) -> None:
    check_script(make(tmp_path, **files))


def test_modules_that_import_each_other_and_never_phalanx(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        check_script(make(tmp_path, train="import a", a="import b", b="import a, train"))


def test_a_missing_script_suggests_the_near_one(tmp_path: Path) -> None:
    script = make(tmp_path, train="")
    for wrong in ("trian.py", "train"):
        with pytest.raises(InputError) as caught:
            check_script(tmp_path / wrong)
        assert "there is no script" in caught.value.cause
        assert str(script) in caught.value.remedy
    with pytest.raises(InputError) as caught:
        check_script(tmp_path / "nowhere" / "train.py")
    assert "no folder" in caught.value.remedy


def test_a_folder_is_not_a_script(tmp_path: Path) -> None:
    script = make(tmp_path, train="")
    with pytest.raises(InputError) as caught:
        check_script(tmp_path)
    assert "is a folder" in caught.value.cause and str(script) in caught.value.remedy


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    """A device or a pipe has no end."""
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path / "pipe.py", Path("/dev/zero")):
        with pytest.raises(InputError, match="is not a regular file"):
            check_script(path)


def test_an_unreadable_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = make(tmp_path, train="")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything
    with pytest.raises(InputError, match="Permission denied"):
        check_script(script)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("import tensorflow as tf", "--framework tensorflow"),
        ("import acceleration", "phalanx.join"),
    ],
)
def test_the_remedy_for_a_script_of_another_framework(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(InputError) as caught:
        check_script(make(tmp_path, train=text))
    assert word in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "adopted"),
    [
        ("import torch", True),
        ("import torch.distributed as dist", True),
        ("from accelerate import Accelerator", True),
        ("def main():\n    import lightning as L", True),
        ("import torch, phalanx\nx = phalanx.data.load('digits')", True),
        ("import torch, phalanx\nphalanx.join(1, 2)", False),
        ("import torch, importlib\nimportlib.import_module('whatever')", True),
        ("def broken(:", True),
    ],
)
def test_a_script_that_does_not_call_phalanx_is_adopted(
    tmp_path: Path, text: str, adopted: bool
) -> None:
    script = make(tmp_path, train=text)
    assert check_script(script) == script
    assert is_adopted(script) == adopted


def test_a_package_imports_from_the_folder_above_it(tmp_path: Path) -> None:
    make(tmp_path, p__run="import p.loop", p__loop="from phalanx import fit")
    (tmp_path / "p" / "__init__.py").touch()
    check_script(tmp_path / "p" / "run.py")


def test_no_unrelated_file_is_suggested(tmp_path: Path) -> None:
    make(tmp_path, main="", test="", brain="")
    for wrong in ("train.py", "best.py", "mine.py"):
        with pytest.raises(InputError) as caught:
            check_script(tmp_path / wrong)
        assert "Did you mean" not in caught.value.remedy or "brain" in caught.value.remedy


@pytest.mark.parametrize(
    ("files", "alone"),
    [
        ({"train.py": "import os, torch\nfrom torch import nn"}, True),
        ({"train.py": "import torch, model", "model.py": "import numpy"}, True),
        ({"train.py": "from nets.small import Net", "nets/small.py": "import torch"}, True),
        (
            {"train.py": "import torch, model", "model.py": "import torch.distributed as dist"},
            False,
        ),
        ({"train.py": "import torch\ntorch.distributed.init_process_group()"}, False),
        ({"train.py": "from torch import distributed"}, False),
        ({"train.py": "import torch\nfrom accelerate import Accelerator"}, False),
        ({"train.py": "import torch\nexec(open('more.py').read())"}, False),
    ],
)
def test_scripts_whose_processes_cannot_find_each_other(
    tmp_path: Path, files: dict[str, str], alone: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert starts_no_group(tmp_path / "train.py") is alone
