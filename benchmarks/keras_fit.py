"""``python -m benchmarks keras``: plain ``fit`` of Keras on one or two workers, against ``python``.

Each has as many samples: the global batch of two workers is twice that of one. Runs alternate.
The backends that are installed are measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from benchmarks.harness import ROOT, phalanx_command, report, spread

SCRIPT = "benchmarks/scripts/keras_fit.py"
BARS = {
    (1, "mlp"): {"torch": 1.1, "jax": 1.5},
    (2, "mlp"): {"torch": 1.2, "tensorflow": 1.4, "jax": 2.0},
    (2, "cnn"): {"torch": 1.08, "tensorflow": 1.08, "jax": 1.08},
}
"""By workers and model: the most that a step may take, as a multiple of one in plain Python."""
BATCH = {"mlp": 64, "cnn": 32}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks keras")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, choices=[1, 2], default=2)
    chosen = parser.parse_args(words)
    for backend in ("torch", "tensorflow", "jax"):
        if importlib.util.find_spec(backend) is not None:
            for model in BATCH:
                compare(model, backend, chosen.workers, chosen.repeats)


def compare(model: str, backend: str, workers: int, repeats: int) -> None:
    alone, together = [], []
    for _ in range(repeats):
        plain = ["taskset", "-c", "0", sys.executable, SCRIPT, model, str(BATCH[model])]
        alone.append(_measured(plain, backend))
        words = ["run", SCRIPT, "--workers", str(workers), "--checkpoint-every", "0", "--", model,
                 str(workers * BATCH[model])]  # fmt: skip
        pinned = ["taskset", "-c", "0"] if workers == 1 else []
        together.append(_measured([*pinned, *phalanx_command(*words)], backend))
    for what in ("wall", "cpu"):
        ratios = [b[what] / a[what] for a, b in zip(alone, together, strict=True)]
        report(
            f"Keras on {backend}, {model}: {what} a step, {workers} workers / python",
            **spread(ratios),
            bar=f"<= {BARS.get((workers, model), {}).get(backend)}",
            alone_ms=round(1e3 * min(row[what] for row in alone), 3),
        )


def _measured(command: list[str], backend: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        one = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **one, "XLA_FLAGS": flags, "KERAS_BACKEND": backend,
                 "PHALANX_RUNS": folder, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )  # fmt: skip
    rows = [line for line in ended.stdout.splitlines() if line.startswith('{"wall"')]
    if ended.returncode or not rows:
        raise SystemExit(f"{' '.join(command)}: {ended.stderr[-800:]}")
    found: dict[str, float] = json.loads(rows[0])
    return found
