"""The events of a run: one JSON object a line, one file a rank (``events/rank-N.jsonl``).

Times are seconds of this machine's monotonic clock, which every process on it shares; ``Joined``
has the wall-clock reading that belongs to its ``time``. Steps come in batches of columns,
at most one line per rank per 250 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from phalanx.core.files import read_lines


class Joined(msgspec.Struct, tag="joined", frozen=True, kw_only=True):
    """A worker is ready: its model is set up and has the weights that all workers begin with."""

    time: float
    wall: float
    rank: int
    workers: int
    machine: str
    pid: int
    device: str
    threads: int
    precision: str
    strategy: str
    parameters: int
    seed: int
    versions: dict[str, str]
    notes: list[str]
    """Changes of the mathematics (precision, rate, shares), as printed at the start."""
    phase: str = ""
    """The phase of the strategy that the worker begins in: after a resume, perhaps a later one."""


class Planned(msgspec.Struct, tag="planned", frozen=True, kw_only=True):
    """Training is about to begin: how much there is to do."""

    time: float
    rank: int
    epochs: int | None
    samples: int
    """Samples per epoch, over all workers."""
    batch: int
    """The global batch."""


class Steps(msgspec.Struct, tag="steps", frozen=True, kw_only=True):
    """Consecutive steps of one rank; the lists are columns of equal length.

    A row without samples, input and compute is a round: independent workers synchronised.
    A step begins when the worker asks for data. The durations follow each other in this order:
    ``input`` (until the data are ready), ``compute`` (until the gradient is ready), ``send``
    (publishing it), ``wait`` (until the worker is admitted), ``reduce`` (combining gradients or
    pulling parameters), ``update`` (the optimizer), ``settle`` (until everyone has updated).
    """

    rank: int
    epoch: int
    first: int
    """The number of the first step of this batch, counted from 0 over the run, per rank."""
    began: list[float]
    samples: list[int]
    input: list[float]
    compute: list[float]
    send: list[float]
    wait: list[float]
    reduce: list[float]
    update: list[float]
    settle: list[float]
    staleness: list[int]
    """Updates of others applied between this worker's pull and its push; 0 in lockstep."""
    loss: list[float | None]
    hidden: list[float] = []
    """Seconds of communication beside the computing; empty if there were none in these steps."""


STEP_COLUMNS = Steps.__struct_fields__[3:]
"""The columns of ``Steps``, in its order."""


class PhaseDone(msgspec.Struct, tag="phase", frozen=True, kw_only=True):
    """A stretch of a worker's time: start, read, prepare, train, evaluate, checkpoint, or write
    (checkpoints, beside the training)."""

    time: float
    rank: int
    phase: str
    seconds: float


class EpochDone(msgspec.Struct, tag="epoch", frozen=True, kw_only=True):
    """A rank has finished its part of an epoch (epochs count from 0)."""

    time: float
    rank: int
    epoch: int
    seconds: float
    """Seconds from beginning to end on this rank, with the evaluation if this rank did it."""
    samples: int
    train_loss: float | None
    """Mean over this rank's samples; weight by ``samples`` to combine ranks."""
    train_accuracy: float | None
    rate: float | None
    step: int | None = None
    """The number of steps so far, in a script that makes its batches itself and has no epochs."""
    gradient_norm: float | None = None
    """The mean norm of the steps' gradients before clipping; ``None`` if they are not clipped."""


class Logged(msgspec.Struct, tag="logged", frozen=True, kw_only=True):
    """Named values at the end of an epoch: the script's, or fit's test and validation figures."""

    time: float
    rank: int
    epoch: int
    values: dict[str, float | None]
    """A figure that is not a number is null."""


class Switched(msgspec.Struct, tag="switched", frozen=True, kw_only=True):
    """The strategy changed. ``pause``: from the last worker's arrival to the first new step."""

    time: float
    rank: int
    epoch: int
    at_epoch: float
    before: str
    after: str
    pause: float


class Balanced(msgspec.Struct, tag="balanced", frozen=True, kw_only=True):
    """The workers' parts of each global batch, by rank, from now on."""

    time: float
    rank: int
    epoch: int
    shares: list[float]
    refused: list[float] | None = None
    """Other shares that were tried and reverted, because they were not faster."""
    rate_before: float | None = None
    rate_after: float | None = None
    """Samples a second in steps with the old shares, and with those that were tried."""


class Noted(msgspec.Struct, tag="noted", frozen=True, kw_only=True):
    """A worker's note on how it trains."""

    time: float
    rank: int
    text: str


class StepRefused(msgspec.Struct, tag="refused", frozen=True, kw_only=True):
    """A step was not taken, because numbers were not finite."""

    time: float
    rank: int
    """The worker that reports the refused step."""
    epoch: int
    step: int
    """The step of this worker, counted from 1."""
    what: str
    """The numbers that were not finite, such as ``the loss of worker 1``."""
    workers: list[int]
    """The workers whose gradients were not finite; empty if only their sum was not."""


class WorkerLost(msgspec.Struct, tag="lost", frozen=True, kw_only=True):
    """A worker is lost, and the others continue without it."""

    time: float
    rank: int
    """The worker that reports the loss."""
    worker: int
    machine: str
    address: str


class SamplesSettled(msgspec.Struct, tag="settled", frozen=True, kw_only=True):
    """The samples of a lost worker, as the parameter store has counted them."""

    time: float
    rank: int
    """The worker that reports them."""
    worker: int
    epoch: int
    trained: int
    """Samples in the lost worker's updates since it joined."""
    of_epoch: int
    """Samples of ``epoch`` in the lost worker's updates."""
    back: int
    """Samples that the other workers train instead."""
    lost: int
    """Samples that no worker trains: in a partial update, or in gradients without their step."""


class Data(msgspec.Struct, tag="data", frozen=True, kw_only=True):
    """A data source was read: its name and size, and the checksums of its files."""

    time: float
    rank: int
    name: str
    samples: int
    checksums: dict[str, str]


class Saved(msgspec.Struct, tag="saved", frozen=True, kw_only=True):
    """A file of weights, or a checkpoint's folder (path relative to the run folder)."""

    time: float
    rank: int
    path: str
    epoch: int


class Alive(msgspec.Struct, tag="alive", frozen=True, kw_only=True):
    """A sign of life of a worker that had no other event for some seconds."""

    rank: int
    stack: list[str] | None = None
    """Where its training thread is, innermost frame first, as ``file:line function``; null if that
    is as in its last sign of life."""
    busy: float | None = None
    """The processor time of that thread since the look before, in cores."""


class LinksUsed(msgspec.Struct, tag="links", frozen=True, kw_only=True):
    """What a worker has sent to other machines so far, as its kernel counts."""

    time: float
    rank: int
    peers: dict[str, tuple[int, float]]
    """By machine: bytes that have arrived there, and the seconds in which some were under way."""


class Finished(msgspec.Struct, tag="finished", frozen=True, kw_only=True):
    """The last event of a worker. ``status``: done, failed or stopped."""

    time: float
    rank: int
    status: str
    bytes_sent: int
    peak_memory: int


Event = (
    Joined
    | Planned
    | Steps
    | PhaseDone
    | EpochDone
    | Logged
    | Switched
    | Balanced
    | Noted
    | StepRefused
    | WorkerLost
    | SamplesSettled
    | Data
    | Saved
    | Alive
    | LinksUsed
    | Finished
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Encode an event as one line, newline included."""
    return _encoder.encode(event) + b"\n"


def decode(line: bytes) -> Event:
    return _decoder.decode(line)


def read_events(path: Path) -> Iterator[Event | None]:
    """Yield the events of a file; a last line cut short by a crash is skipped.

    ``None`` stands for a part that was left out because it was too long.
    """
    if not path.is_file():
        return
    for line in read_lines(path):
        try:
            yield None if line is None else decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue


class FrozenWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker none of whose Python threads runs: it is stopped, or native code holds them all."""

    pid: int
    state: str
    """The letter of the kernel for its state; ``T``: stopped by a signal."""
    stack: list[str]
    """Where its training thread was last seen, as in ``Alive``."""


class MachineSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a machine, once a second (``machines/NAME.jsonl``)."""

    time: float
    cpu_percent: float
    """Use of all cores together, 0 to 100."""
    memory_bytes: int
    network_bytes_per_second: float
    """Bytes sent and received, over all interfaces."""
    workers_cpu_percent: float
    """Use by the run's workers, in percent of one core."""
    workers_memory_bytes: int
    network_received: int | None = None
    """Bytes since the machine started; ``None`` (null) if unknown."""
    network_sent: int | None = None
    disk_bytes_per_second: float | None = None
    """Bytes read and written."""
    gpu_percent: float | None = None
    """The mean use of the machine's GPUs."""
    gpu_memory_bytes: int | None = None
    watts: float | None = None
    """Watts of those processors and GPUs that count them."""
    cores: float | None = None
    """The cores that ``cpu_percent`` refers to: all, or those that a control group may use."""
    cpu_source: str | None = None
    """The source of the processor time: the kernel, a control group, or the processes seen."""
    frozen: list[FrozenWorker] | None = None
    """The workers that do not run at all; null if all do."""
    # From here on, ``None`` (null) where the kernel does not tell; rates are since the reading
    # before, and those of a control group or network namespace if the machine has one.
    cpu_user: float | None = None
    """``cpu_percent`` by kind: programs (with lower priority, too), in percent of all cores."""
    cpu_system: float | None = None
    """The kernel, interrupts included."""
    cpu_wait: float | None = None
    """Idle while a disk was awaited; not in ``cpu_percent``."""
    cpu_steal: float | None = None
    """Taken by the host of a virtual machine."""
    memory_cached: int | None = None
    """Bytes of cached files."""
    swap_bytes: int | None = None
    swap_bytes_per_second: float | None = None
    """Bytes swapped in and out."""
    major_faults_per_second: float | None = None
    """Page faults that had to read from a disk."""
    network_received_per_second: float | None = None
    network_sent_per_second: float | None = None
    disk_read_per_second: float | None = None
    disk_written_per_second: float | None = None
    pressure_cpu: float | None = None
    """Percent of the time in which some process waited for a core (PSI)."""
    pressure_memory: float | None = None
    pressure_io: float | None = None
    throttled_percent: float | None = None
    """Percent of the time in which a quota kept processes from running, added up over cores."""
    retransmits_per_second: float | None = None
    """TCP segments that were sent again."""
    segments_per_second: float | None = None
    """TCP segments sent."""
    load_before: float | None = None
    """In the first reading: processes that ran or wanted to, in the minute before the workers."""
    memory_before: int | None = None
    memory_total: int | None = None
    """In the first reading: bytes of memory, or what a control group may use of it."""

    @property
    def cpu_idle(self) -> float | None:
        """Percent of all cores in which nothing ran, and nothing waited for a disk."""
        if self.cpu_user is None:
            return None
        return max(0.0, 100.0 - self.cpu_percent - (self.cpu_wait or 0.0))
