from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.script import datasets
from phalanx.data.load import SOURCES
from phalanx.data.sources import cifar
from phalanx.launch.script.script_datasets import Needs, needs_of

SURE = [
    'import phalanx\ntrain, test = phalanx.data.load("mnist")',
    'import phalanx as p\np.data.load(name="mnist")',
    'import phalanx.data\nphalanx.data.load("mnist")',
    'import phalanx.data as d\nd.load("mnist")',
    'from phalanx import data as d\nd.load("mnist")',
    'from phalanx.data import load as get\nget("mnist")',
    'import phalanx\ndef main():\n    return phalanx.data.load("mnist")',
    'import phalanx\nif __name__ == "__main__":\n    phalanx.data.load("mnist")',
    "import helper",
]
MAYBE = [
    ('import phalanx\nif x:\n    phalanx.data.load("mnist")', {"mnist"}),
    ('import phalanx\ntry:\n    phalanx.data.load("mnist")\nexcept E: pass', {"mnist"}),
    (
        'import phalanx\ndef a(): phalanx.data.load("mnist")\ndef b(): phalanx.data.load("kmnist")',
        {"mnist", "kmnist"},
    ),
]
NONE = [
    'import json\njson.load("mnist")',
    'import phalanx\nphalanx.data.load("mnist", folder=here)',
    '"mnist"',
    "import phalanx\nphalanx.data.load(",
]


def needs(folder: Path, source: str, *words: str, foreign: bool = False) -> Needs:
    (folder / "train.py").write_text(source)
    (folder / "helper.py").write_text('from phalanx.data import load\nload("mnist")')
    return needs_of(folder / "train.py", words, foreign=foreign)


@pytest.mark.parametrize("source", SURE)
def test_what_is_always_loaded(tmp_path: Path, source: str) -> None:
    assert needs(tmp_path, source) == Needs(surely={"mnist"})


@pytest.mark.parametrize(("source", "names"), MAYBE)
def test_what_may_be_loaded(tmp_path: Path, source: str, names: set[str]) -> None:
    assert needs(tmp_path, source) == Needs(maybe=names)


@pytest.mark.parametrize("source", NONE)
def test_what_is_not_ours(tmp_path: Path, source: str) -> None:
    assert needs(tmp_path, source) == Needs()


def test_a_name_that_only_the_run_knows(tmp_path: Path) -> None:
    source = 'import phalanx\nNAMES = ["mnist", "cifar-10"]\nphalanx.data.load(args.name)'
    assert needs(tmp_path, source) == Needs(mentioned={"mnist", "cifar-10"}, unclear=True)
    assert needs(tmp_path, source, "--name=mnist").mentioned == {"mnist"}
    assert needs(tmp_path, "import phalanx\nphalanx.data.load(name)") == Needs(unclear=True)


def test_a_script_of_another_framework_names_a_folder(tmp_path: Path) -> None:
    found = needs(tmp_path, 'home = Path(os.environ["PHALANX_DATA"]) / "mnist"', foreign=True)
    assert found == Needs(mentioned={"mnist"})
    found = needs(tmp_path, 'open(f"{home}/mnist/t10k-labels-idx1-ubyte")', foreign=True)
    assert found == Needs(mentioned={"mnist"})


def test_the_tables_agree() -> None:
    assert set(datasets.FILES) == set(SOURCES.names())
    assert tuple(datasets.CIFAR_FILES) == tuple(cifar.CHECKSUMS)
    assert {name for name, files in datasets.FILES.items() if files} == set(datasets.HOMES)
