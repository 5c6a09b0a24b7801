"""``make bench-hosts``: every figure between machines, one after another; about an hour.

``python -m benchmarks hosts [--short]``. Each part is also a benchmark of its own, with options.
A part that fails is told, and the others go on.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

PARTS: dict[str, list[str]] = {
    "store-wire": ["--rounds", "3"],
    "hosts-steps": ["--rounds", "3", "--seconds", "1"],
    "hosts-ahead": ["--rounds", "2", "--seconds", "1"],
    "hosts-straggler": ["--rounds", "2", "--seconds", "4"],
    "hosts-codecs": ["--epochs", "1", "--limit", "10", "--folder", "runs/hosts-codecs-short"],
}
"""In this order; with what makes each of them short."""


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosts")
    parser.add_argument("--short", action="store_true", help="only whether all of it works")
    chosen = parser.parse_args(words)
    failed = [part for part, short in PARTS.items() if not _works(part, chosen.short, short)]
    if failed:
        raise SystemExit(f"these parts failed: {', '.join(failed)}")


def _works(part: str, is_short: bool, short: list[str]) -> bool:
    module = importlib.import_module(f"benchmarks.{part.replace('-', '_')}")
    try:
        module.main(short if is_short else [])
    except Exception:
        traceback.print_exc()
        return False
    except SystemExit as ended:
        if not isinstance(ended.code, str):
            raise  # somebody wants all of it to end
        print(f"{part}: {ended.code}", file=sys.stderr, flush=True)
        return False
    return True
