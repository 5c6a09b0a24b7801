"""The settings of a run, as the command line passes them to the workers.

``None`` means "as the script says"; any other value overrides the script.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from phalanx.core import words

Precision = Literal["auto", "float32", "tf32", "bfloat16", "float16"]
PRECISIONS = ("auto", "float32", "tf32", "bfloat16", "float16")
AUTOCASTS = ("bfloat16", "float16")
"""Precisions that are computed under autocast, with images in channels_last."""
CompileMode = Literal["off", "auto", "default", "reduce-overhead"]
COMPILE_MODES = ("off", "auto", "default", "reduce-overhead")
Balance = Literal["auto", "off"]
OnNonfinite = Literal["skip", "stop"]
View = Literal["auto", "whole", "parts"]
VIEWS = ("auto", "whole", "parts")
LossKind = Literal["mean", "sum"]
LOSSES = ("mean", "sum")
PROFILE_STEPS, MOST_PROFILE_STEPS = 20, 200
"""The steps that ``--profile`` records if it is given no number, and the most."""
OURS = "phalanx"
"""The name of Phalanx in comparisons with other systems."""
KERAS_SYSTEMS = {"keras-torch": "torch", "keras-tf": "tensorflow", "keras-jax": "jax"}
"""The names under which Phalanx trains Keras scripts, each with its backend."""
SPARK_SYSTEM = "phalanx-spark"
SPARK_ESTIMATOR = "spark-estimator"
"""The system of a script that fits ``phalanx.spark.Estimator``: Spark's driver."""
ESTIMATOR = "PHALANX_ESTIMATOR_WORKERS"
"""The variable that tells such a script how many workers to ask for."""
OUR_SYSTEMS = (OURS, SPARK_SYSTEM, SPARK_ESTIMATOR, *KERAS_SYSTEMS)
"""The names of all systems in which Phalanx trains."""

# The environment of a worker (Phalanx's; other launchers' variables are mapped in train/start).
RANK = "PHALANX_RANK"
WORKERS = "PHALANX_WORKERS"
RUN_FOLDER = "PHALANX_RUN"
MACHINE = "PHALANX_MACHINE"
SETTINGS = "PHALANX_SETTINGS"
ARENA = "PHALANX_ARENA"  # number of the inherited file descriptor of the shared memory
PROCESS = "PHALANX_WORKER_PROCESS"  # process id of the worker, which alone may join
DEVICE = "PHALANX_DEVICE"  # "cpu" or "cuda:N", from the plan
CPUS = "PHALANX_CPUS"  # the cores this worker is pinned to ("0,1"); empty: any
STARTED = "PHALANX_STARTED"  # clock reading (CLOCK_MONOTONIC, s) when the launcher started this
CONTROLLER = "PHALANX_CONTROLLER"  # process id of the controller, which a worker never outlives
DATA = "PHALANX_DATA"  # where the data are on this machine; overrides the settings
SKEW = "PHALANX_SKEW"  # seconds that this machine's wall clock is ahead of the controller's
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # libraries' variables
HASHING = "PYTHONHASHSEED"  # Python's variable: the order of sets depends on it
KERAS_BACKEND = "KERAS_BACKEND"  # Keras' variable
GRACE = "PHALANX_GRACE"  # seconds between SIGTERM and being killed


class VirtualWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: a step of ``n`` samples takes ``fixed + each * n`` seconds."""

    fixed: float
    each: float
    update: float = 0.0
    """Seconds of the optimizer's step on all parameters."""
    evaluate: float = 0.0
    """Seconds of the evaluation after an epoch, by this worker alone."""
    bandwidth: float | None = None
    """Bytes per second of its machine's link in each direction; ``None``: bytes take no time."""
    home: int | None = None
    """The number of its machine; ``None``: no other worker is on it. Messages within a machine
    use no link."""


class VirtualCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The emulated cluster of a run in virtual time; all gradients are real."""

    workers: list[VirtualWorker]
    variation: float = 0.0
    """Standard deviation of a step's computing, as a share of its mean; lognormal."""
    latency: float = 0.0
    """Seconds that each message takes, besides those of its bytes."""
    servers: tuple[int, ...] = (0,)
    """The ranks of the workers on whose machines the parameter servers are."""
    failures: dict[int, int] = {}
    """The ranks of workers that are lost, each with the step of its loss, counted from 1."""

    def home(self, rank: int) -> int:
        """Return the number of a worker's machine; it is negative if the worker is alone on it."""
        own = self.workers[rank].home
        return -1 - rank if own is None else own

    @property
    def slowest_link(self) -> float | None:
        """The bytes per second of the slowest link; ``None`` if bytes take no time."""
        found = [w.bandwidth for w in self.workers if w.bandwidth is not None]
        return min(found, default=None)

    @property
    def has_links(self) -> bool:
        """Whether exchanges take time."""
        return self.latency > 0.0 or self.slowest_link is not None

    def describe(self) -> str:
        """Return words such as ``links of 100 Mbit/s, 0.1 ms``."""
        parts = []
        rates = sorted({w.bandwidth for w in self.workers if w.bandwidth is not None})
        if rates:
            ends = [words.rate(rate * 8) for rate in (rates[0], rates[-1])]
            parts.append("links of " + (ends[0] if len(rates) == 1 else " to ".join(ends)))
        if self.latency:
            parts.append(words.seconds(self.latency))
        if self.variation:
            parts.append(f"jitter {words.rough_share(self.variation)}")
        lost = ", ".join(f"worker {r} at step {step}" for r, step in self.failures.items())
        return ", ".join([*parts, *([f"lost: {lost}"] if lost else [])])


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run."""

    strategy: str = "allreduce"
    epochs: int | None = None
    batch: int | None = None
    seed: int = 0
    precision: Precision = "float32"
    compile: CompileMode = "off"
    """Whether ``torch.compile`` compiles the model; ``auto``: if that is measured to be faster."""
    divide_rate: bool = True
    data: str | None = None
    balance: Balance = "off"
    """``auto``: batch shares follow the measured speeds where they differ."""
    on_nonfinite: OnNonfinite = "skip"
    """Whether a step whose gradient is not finite is skipped or ends the run."""
    slow: list[float] | None = None
    """Emulation: the relative speed of each worker; 1 is its real speed."""
    rate: float | None = None
    """Emulation: bits per second between workers."""
    checkpoint_epochs: int = 0
    """The number of epochs between checkpoints; 0: none are written."""
    checkpoint_minutes: float | None = None
    checkpoint_gap: float = 0.0
    """The least seconds between checkpoints after epochs; the last epoch always has one."""
    keep: int = 3
    """How many checkpoints are kept, besides the best."""
    second_copy: bool = False
    """Whether a second machine keeps checkpoints too, because no controller fetches them."""
    adopt: bool = False
    """Whether the script does not call Phalanx, so that its training is found while it runs."""
    private_weights: bool = False
    """Whether the script may write into the weights itself, so that each worker trains a copy."""
    explain: bool = False
    """Whether the script is adopted only to see what it trains, up to its first steps."""
    profile: float | None = None
    """The seconds of a run that only measures the script and saves nothing; ``None``: it trains."""
    profile_steps: int = 0
    """The number of steps whose operators each worker records; 0: none."""
    view: View = "auto"
    """Whether an adopted script in lockstep sees a whole batch, or this worker's part of it."""
    check: int = 12
    """The number of first steps of an adopted training to compare with one process; 0: none."""
    loss: LossKind | None = None
    """How an adopted script reduces a batch to a loss; ``None``: as its losses show."""
    module: str | None = None
    """The script's name as a module, if ``-m`` was given."""
    resume: str | None = None
    """The folder of the checkpoint to resume from."""
    keras: str | None = None
    """The name of a Keras script's backend, one of ``KERAS_SYSTEMS``, if any was asked for."""
    virtual: VirtualCluster | None = None
    """The cluster that is simulated by threads in virtual time, if any."""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> RunSettings:
        return msgspec.json.decode(text, type=RunSettings)


def smaller_is_better(name: str) -> bool:
    """Whether a smaller value of a logged figure is better, judged by its name."""
    return any(word in name.lower() for word in ("loss", "error", "perplexity"))


VIRTUAL_TIME = "virtual time"
MOST_SPEEDS = 16
"""The most speeds of workers that are listed one by one."""


def mark(emulated: str | None) -> str | None:
    """Return ``simulated`` or ``emulated`` for words of :func:`describe_emulation`."""
    if emulated is None:
        return None
    return "simulated" if emulated.startswith(VIRTUAL_TIME) else "emulated"


def describe_emulation(chosen: RunSettings, machines: bool = False) -> str | None:
    """Return words such as ``speeds 1, 1, 0.25; 100 Mbit/s``; ``None`` if nothing is emulated."""
    found = [VIRTUAL_TIME] if chosen.virtual else ["lab machines"] if machines else []
    if chosen.slow and any(speed != 1.0 for speed in chosen.slow):
        few = len(chosen.slow) <= MOST_SPEEDS
        ends = f"{min(chosen.slow):g} to {max(chosen.slow):g}"
        found.append("speeds " + (", ".join(f"{s:g}" for s in chosen.slow) if few else ends))
    if chosen.rate is not None:
        found.append(words.rate(chosen.rate))
    if chosen.virtual is not None and (cluster := chosen.virtual.describe()):
        found.append(cluster)
    return "; ".join(found) or None
