"""The fields of ``summary.json``. They are stable: an unknown one is null, never absent."""

from __future__ import annotations

import msgspec

from phalanx.core.settings import OURS
from phalanx.observe.machines.resources import Before, Resources, Totals
from phalanx.observe.speedup.speedup import Worth
from phalanx.observe.speedup.straggler import Straggler, Wait


class MachineSummary(msgspec.Struct, kw_only=True):
    name: str
    workers: int
    resources: Resources = msgspec.field(default_factory=Resources)
    resources_training: Resources = msgspec.field(default_factory=Resources)
    """The same from the first step of any worker to the last."""
    totals: Totals = msgspec.field(default_factory=Totals)
    before: Before = msgspec.field(default_factory=Before)
    other_cpu_percent: float | None = None
    """Use of all its cores by other programs while this run trained, on average."""
    network_bytes: int | None = None
    """Bytes sent and received from its first reading to its last, by the kernel's counters."""
    contribution: int | None = None
    """Samples that its workers trained on."""


class Phases(msgspec.Struct, kw_only=True):
    """Seconds of each phase: the slowest worker's."""

    start: float | None = None
    """Seconds from the launch to the first step, without the script's own work before it joins."""
    read: float | None = None
    """Seconds in ``phalanx.data.load``."""
    prepare: float | None = None
    """Seconds of the script's other work before it joins, usually preprocessing."""
    train: float | None = None
    evaluate: float | None = None
    checkpoint: float | None = None
    """Seconds in which the training stood still for checkpoints."""


class TimeSplit(msgspec.Struct, kw_only=True):
    """How the steps' time was spent, in seconds per worker (the mean of the workers)."""

    input: float | None = None
    compute: float | None = None
    communicate: float | None = None
    wait: float | None = None
    update: float | None = None
    hidden: float | None = None
    """Communication beside computing, of the workers that exchange with other machines; it is no
    part of the steps' time."""


class SwitchSummary(msgspec.Struct, kw_only=True, rename={"before": "from", "after": "to"}):
    at_epoch: float
    before: str
    after: str
    pause_seconds: float


class WorkerSummary(msgspec.Struct, kw_only=True):
    """One worker's part of the run."""

    rank: int
    machine: str | None = None
    device: str | None = None
    threads: int | None = None
    samples: int = 0
    steps: int = 0
    samples_per_second: float | None = None
    seconds_per_sample: float | None = None
    """Seconds of input and computing for one sample, without any waiting."""
    share: float | None = None
    """Part of a global batch at the end; null if shares were never changed."""
    wait_share: float | None = None
    mean_staleness: float | None = None
    peak_memory_bytes: int | None = None


class DataSummary(msgspec.Struct, kw_only=True):
    name: str
    samples: int
    checksums: dict[str, str] = {}


class RefusedSummary(msgspec.Struct, kw_only=True):
    """A step that was not taken, because numbers were not finite."""

    epoch: int
    step: int
    """The step of the worker that reports it, counted from 1."""
    what: str
    """The numbers that were not finite, such as ``the loss of worker 1``."""


class BalanceSummary(msgspec.Struct, kw_only=True):
    """The effect of batch shares by measured speed."""

    changes: int
    refused: int = 0
    """Other shares that were tried and reverted, because they were not faster."""
    first_epoch: int
    last_epoch: int
    rate_before: float | None = None
    """Samples a second of all workers in typical steps before the first change."""
    rate_after: float | None = None
    """The same after the last change; both are null if the strategy was switched."""


class CheckpointSummary(msgspec.Struct, kw_only=True):
    path: str
    epoch: int
    """The epoch in which it was written, counted from 0."""


class Summary(msgspec.Struct, kw_only=True):
    """The results of a run."""

    run: str
    status: str
    strategy: str | None = None
    system: str = OURS
    workers: int | None = None
    machines: list[MachineSummary] = []
    epochs: int | None = None
    samples: int | None = None
    samples_lost: int | None = None
    """Samples of lost workers that the others could not train instead."""
    unreported: list[int] = []
    """Ranks whose last events did not arrive: what they trained at the end is not counted."""
    seconds: float | None = None
    samples_per_second: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    metrics: dict[str, float | None] = {}
    precision: str | None = None
    batch: int | None = None
    seed: int | None = None
    phases: Phases = msgspec.field(default_factory=Phases)
    time: TimeSplit = msgspec.field(default_factory=TimeSplit)
    resources: Resources = msgspec.field(default_factory=Resources)
    resources_training: Resources = msgspec.field(default_factory=Resources)
    bytes_sent: int | None = None
    emulated: str | None = None
    """Words on what is emulated, such as slowed workers and links; null if nothing is."""
    simulated: bool = False
    """Whether the cluster was simulated, so that all times are virtual. Losses are real."""
    shares: list[float] | None = None
    """The workers' last parts of a global batch; null if they never changed."""
    checkpoints: int = 0
    """How many checkpoints were written; the newest few are kept."""
    resumes: str | None = None
    """The run and checkpoint that this run resumed from."""
    nonfinite_steps: int = 0
    """Steps that were skipped because numbers were not finite."""
    switches: list[SwitchSummary] = []
    exit_codes: list[int | None] = []
    predicted: dict[str, float | None] = msgspec.field(default_factory=lambda: {"seconds": None})
    history: list[dict[str, float | int | None]] = []
    # The fields from here on are not stable: later versions may add and remove some.
    parameters: int | None = None
    step_seconds: float | None = None
    staleness: dict[int, int] = {}
    per_worker: list[WorkerSummary] = []
    nonfinite: list[RefusedSummary] = []
    """The first few steps that were refused because they were not finite."""
    straggler: Straggler | None = None
    waits: list[Wait] = []
    """Who waited for whom, longest first."""
    balance: BalanceSummary | None = None
    worth: Worth | None = None
    """What each machine contributed, and whether fewer would be faster."""
    samples_by_phase: dict[str, int] = {}
    """Samples trained in each phase of the strategy."""
    bytes_per_step: float | None = None
    """Bytes that one worker sends, on average over its steps."""
    checkpoint: CheckpointSummary | None = None
    """The last checkpoint."""
    checkpoint_seconds: dict[int, float] = {}
    """Training time until each of the newest checkpoints, by number; earlier runs' included."""
    checkpoint_hidden: float | None = None
    """Seconds of writing checkpoints while the training went on."""
    data: list[DataSummary] = []
    notes: list[str] = []
    versions: dict[str, str] = {}
    files: list[str] = []

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()
