"""How runs end when something goes wrong: in time, with one clear line, and with nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import phalanx


def _script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


IN_PROCESS = ["--workers", "3", "--launcher", "inprocess"]
FIT = """
import torch, phalanx
m = torch.nn.Linear(2, 1)
phalanx.fit(m, optimizer=torch.optim.SGD(m.parameters(), lr=0.1), loss=torch.nn.functional.mse_loss,
            train=(torch.randn({samples}, 2), torch.randn({samples}, 1)), epochs=1, batch={batch})
"""


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (FIT.format(samples=2, batch=8), IN_PROCESS, "more than the 2 samples"),
        pytest.param(
            FIT.format(samples=20, batch=2),
            IN_PROCESS,
            "batch of 2 is smaller than the 3",
            marks=pytest.mark.slow,
        ),
        (
            "import phalanx\nif False: phalanx.fit()\n",
            [],
            "never called phalanx.fit or phalanx.join",
        ),
        ("print('hello')\n", [], "calls neither phalanx.fit nor phalanx.join"),
    ],
)
def test_mistakes_that_only_the_script_shows(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    ended = phalanx("run", _script(tmp_path, text), *words, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    lines = [n for n in ended.stderr.splitlines() if n.startswith("error:")]
    assert len(lines) == 1
