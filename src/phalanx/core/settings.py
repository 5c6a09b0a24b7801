"""What the command line says about a run, as it travels to the workers.

``None`` means "as the script says"; any other value wins over the script.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from phalanx.core import words

Precision = Literal["auto", "float32", "tf32", "bfloat16", "float16"]
PRECISIONS = ("auto", "float32", "tf32", "bfloat16", "float16")
AUTOCASTS = ("bfloat16", "float16")
"""Computed under autocast, images in channels_last."""
CompileMode = Literal["off", "auto", "default", "reduce-overhead"]
COMPILE_MODES = ("off", "auto", "default", "reduce-overhead")
Balance = Literal["auto", "off"]
OnNonfinite = Literal["skip", "stop"]
View = Literal["auto", "whole", "parts"]
VIEWS = ("auto", "whole", "parts")
LossKind = Literal["mean", "sum"]
LOSSES = ("mean", "sum")
OURS = "phalanx"
"""The name of this system, among others that do the same job."""
KERAS_SYSTEMS = {"keras-torch": "torch", "keras-tf": "tensorflow", "keras-jax": "jax"}
"""The names under which Phalanx trains Keras scripts, each with its backend."""
SPARK_SYSTEM = "phalanx-spark"
OUR_SYSTEMS = (OURS, SPARK_SYSTEM, *KERAS_SYSTEMS)
"""The names of systems that are Phalanx itself."""

# The environment of a worker (ours; other launchers' variables are mapped in train/start).
RANK = "PHALANX_RANK"
WORKERS = "PHALANX_WORKERS"
RUN_FOLDER = "PHALANX_RUN"
MACHINE = "PHALANX_MACHINE"
SETTINGS = "PHALANX_SETTINGS"
ARENA = "PHALANX_ARENA"  # number of the inherited file descriptor of the shared memory
PROCESS = "PHALANX_WORKER_PROCESS"  # process id of the worker, which alone may join
DEVICE = "PHALANX_DEVICE"  # "cpu" or "cuda:N", from the plan
CPUS = "PHALANX_CPUS"  # the cores this worker is pinned to ("0,1"); empty: any
STARTED = "PHALANX_STARTED"  # clock reading (CLOCK_MONOTONIC, seconds) when the launcher started us
CONTROLLER = "PHALANX_CONTROLLER"  # process id of the controller, which a worker never outlives
DATA = "PHALANX_DATA"  # where the data are on this machine; wins over the settings
SKEW = "PHALANX_SKEW"  # seconds that this machine's wall clock is ahead of the controller's
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # others' variables
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
    """The number of its machine; ``None``: it is alone on one. Nothing that stays on a machine
    uses a link."""


class VirtualCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The emulated cluster of a run in virtual time; all gradients are real."""

    workers: list[VirtualWorker]
    variation: float = 0.0
    """Standard deviation of a step's computing, as a share of its mean; lognormal."""
    latency: float = 0.0
    """Seconds of a message to the other side."""
    servers: tuple[int, ...] = (0,)
    """The workers on whose machines the servers are that keep the parameters."""
    failures: dict[int, int] = {}
    """Workers that are lost, and the step at which that happens, counted from 1."""

    def home(self, rank: int) -> int:
        """The machine of a worker."""
        own = self.workers[rank].home
        return -1 - rank if own is None else own

    @property
    def slowest_link(self) -> float | None:
        """Bytes per second."""
        found = [w.bandwidth for w in self.workers if w.bandwidth is not None]
        return min(found, default=None)

    @property
    def has_links(self) -> bool:
        """Whether exchanges take time."""
        return self.latency > 0.0 or self.slowest_link is not None

    def describe(self) -> str:
        """``links of 100 Mbit/s, 0.1 ms``."""
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
    """Overrides and choices of one run."""

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
    """What becomes of a step whose gradient is not finite: it is skipped, or ends the run."""
    slow: list[float] | None = None
    """Emulation: the speed of each worker; 1 is its own."""
    rate: float | None = None
    """Emulation: bits per second between workers."""
    checkpoint_epochs: int = 0
    """A checkpoint every so many epochs; 0 is none."""
    checkpoint_minutes: float | None = None
    checkpoint_gap: float = 0.0
    """Seconds: after an epoch none is taken if the last one is younger; the last epoch's always."""
    keep: int = 3
    """How many checkpoints are kept, besides the best."""
    second_copy: bool = False
    """Whether a second machine keeps them too: no controller takes them home meanwhile."""
    adopt: bool = False
    """The script does not call Phalanx: what it trains is found while it runs."""
    private_weights: bool = False
    """The script may write into the weights itself: each worker trains a copy of them."""
    explain: bool = False
    """The script is adopted only to see what it trains, up to its first steps."""
    profile: float | None = None
    """The run only measures what the script costs, for so many seconds: it saves nothing."""
    view: View = "auto"
    """What an adopted script sees of a batch in lockstep: all of it, or this worker's part."""
    check: int = 12
    """First steps of an adopted training that are compared with those of one process; 0: none."""
    loss: LossKind | None = None
    """What an adopted script makes of a batch; ``None``: as its losses look."""
    module: str | None = None
    """The script's name as a module, where it was asked for by ``-m``."""
    resume: str | None = None
    """The folder of the checkpoint to go on from."""
    keras: str | None = None
    """The name of a Keras script's backend, one of ``KERAS_SYSTEMS``, where it was asked for."""
    virtual: VirtualCluster | None = None
    """Workers are threads in virtual time: the cluster that they stand for."""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> RunSettings:
        return msgspec.json.decode(text, type=RunSettings)


def smaller_is_better(name: str) -> bool:
    """Whether a smaller value of a logged figure is better, as far as its name says."""
    return any(word in name.lower() for word in ("loss", "error", "perplexity"))


VIRTUAL_TIME = "virtual time"
MOST_SPEEDS = 16
"""Speeds of workers that are listed one by one, at most."""


def mark(emulated: str | None) -> str | None:
    """``simulated`` or ``emulated``, as :func:`describe_emulation` describes it."""
    if emulated is None:
        return None
    return "simulated" if emulated.startswith(VIRTUAL_TIME) else "emulated"


def describe_emulation(chosen: RunSettings, machines: bool = False) -> str | None:
    """``speeds 1, 1, 0.25; 100 Mbit/s``, or ``None`` where all is as it is."""
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
