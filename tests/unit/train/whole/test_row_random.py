"""Random numbers of rows are drawn without torch's compiler, which nobody asked for."""

from __future__ import annotations

from commands import python

DRAWS = """
import sys, torch
from phalanx.sync.state.skip_dynamo_import import COMPILER
from phalanx.train.whole.row_plan import RowRandom
torch.manual_seed(1)
whole = torch.nn.functional.dropout(torch.ones(6, 4))
torch.manual_seed(1)
with RowRandom(mine=2, start=3, total=6):
    rows = torch.nn.functional.dropout(torch.ones(2, 4))
print(torch.equal(rows, whole[3:5]), COMPILER in sys.modules)
"""


def test_rows_of_one_process_are_drawn_without_the_compiler() -> None:
    ended = python("-c", DRAWS)
    assert ended.stdout.split() == ["True", "False"], ended.stderr
