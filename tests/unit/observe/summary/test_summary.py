"""The summary is a pure function of the run's files, whatever state they are in."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import psutil
import pytest
from made_runs import write_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev
from phalanx.observe.events.strategy_phases import split_phases
from phalanx.observe.events.timeline import read_ranks
from phalanx.observe.summary import run_lock as claim
from phalanx.observe.summary.summary import Summary, summarise

REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "summary.md"


def keep(paths: RunPaths, rank: int, *kinds: type) -> None:
    """Only events of these kinds are left of a rank."""
    path = paths.events_of(rank)
    kept = [event for event in ev.read_events(path) if isinstance(event, kinds)]
    path.write_bytes(b"".join(map(ev.encode, kept)))


@pytest.mark.parametrize("empty", [True, False])
def test_every_stable_field_of_the_reference_is_always_there(tmp_path: Path, empty: bool) -> None:
    paths = RunPaths(tmp_path / "nothing") if empty else write_run(tmp_path, "run")
    found = json.loads(summarise(paths).to_json())
    stable = REFERENCE.read_text().partition("are not stable")[0]
    rows = [line.split("|")[1] for line in stable.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)(?:\{(.*?)\}|\[\])?`", "".join(rows))
    assert len(named) > 30
    for name, inner in named:
        assert name in found
        assert not inner or set(inner.split(",")) - {"…"} <= set(found[name])


def test_a_run_without_any_event_is_lost_and_null(tmp_path: Path) -> None:
    summary = summarise(RunPaths(tmp_path / "nothing"))
    assert summary.status == "lost"
    assert (summary.seconds, summary.samples, summary.epochs) == (None, None, None)
    assert summary.history == [] and summary.straggler is None


@pytest.mark.parametrize(("samples", "batch"), [(64, None), (2, 1)])
def test_batches_of_a_scripts_own_making_have_no_known_size(
    tmp_path: Path, samples: int, batch: int | None
) -> None:
    """Its workers plan with batches of one sample, whatever their steps have."""
    paths = write_run(tmp_path, "run", batch=samples)
    for rank in (0, 1):
        path = paths.events_of(rank)
        events = [
            msgspec.structs.replace(e, batch=1) if isinstance(e, ev.Planned) else e
            for e in ev.read_events(path)
        ]
        path.write_bytes(b"".join(map(ev.encode, events)))
    assert summarise(paths).batch == batch


def test_counts_and_rates_agree(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, "run", epochs=3, steps=6, batch=128))
    assert summary.status == "done"
    assert summary.samples == 3 * 6 * 128
    assert summary.epochs == len(summary.history) == 3
    assert summary.phases.train and summary.samples_per_second
    assert summary.samples_per_second == pytest.approx(summary.samples / summary.phases.train)
    assert summary.seconds and summary.seconds > summary.phases.train
    assert summary.history[-1]["test_accuracy"] == summary.test_accuracy
    assert sum(worker.samples for worker in summary.per_worker) == summary.samples
    seconds = [row["seconds"] for row in summary.history]
    assert seconds == sorted(seconds)


def test_the_parts_of_time_are_seconds_per_worker(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", workers=2, slow={1: 3.0}, noise=0.0, compute=0.01)
    time = summarise(paths).time
    steps = 3 * 6
    assert time.compute == pytest.approx(steps * (0.01 + 0.03) / 2)
    head_start = 0.01  # rank 0 begins that much earlier, so it waits once more
    assert time.wait == pytest.approx((steps * 0.02 + head_start) / 2)
    assert time.communicate == pytest.approx(steps * 0.0005)


def test_what_is_hidden_and_what_checkpoints_cost_is_no_part_of_the_steps(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", workers=2)
    before = summarise(paths)
    assert before.time.hidden is None and before.checkpoint_hidden is None
    path = paths.events_of(0)
    events = [
        msgspec.structs.replace(e, hidden=[0.001] * len(e.began)) if isinstance(e, ev.Steps)
        else msgspec.structs.replace(e, gradient_norm=2.0 + e.epoch)
        if isinstance(e, ev.EpochDone) else e
        for e in ev.read_events(path) if e is not None
    ]  # fmt: skip
    spent = {"checkpoint": 0.5, "write": 2.0}
    events += [ev.PhaseDone(time=9, rank=0, phase=n, seconds=s) for n, s in spent.items()]
    path.write_bytes(b"".join(map(ev.encode, events)))
    after = summarise(paths)
    steps = after.per_worker[0].steps
    assert after.time.hidden == pytest.approx(0.001 * steps), "of the worker that sends"
    assert msgspec.structs.replace(after.time, hidden=None) == before.time
    assert (after.phases.checkpoint, after.checkpoint_hidden) == (0.5, 2.0)
    assert [row["gradient_norm"] for row in after.history[:2]] == [2.0, 3.0]


def test_ranks_are_weighted_by_their_samples(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", workers=2, epochs=1)
    for rank, (samples, loss) in enumerate([(30, 1.0), (10, 5.0)]):
        keep(paths, rank, ev.Joined)
        done = ev.EpochDone(
            time=1003.0, rank=rank, epoch=0, seconds=1.0, samples=samples,
            train_loss=loss, train_accuracy=None, rate=None,
        )  # fmt: skip
        with paths.events_of(rank).open("ab") as file:
            file.write(ev.encode(done))
    summary = summarise(paths)
    assert summary.train_loss == pytest.approx(2.0)
    assert summary.train_accuracy is None
    assert summary.history[0]["samples_per_second"] == pytest.approx(40.0)


def test_logged_names_become_fields_or_metrics(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", logged={"validation_accuracy": 0.5, "bleu": 31.0})
    summary = summarise(paths)
    assert summary.validation_accuracy == 0.5
    assert summary.metrics == {"bleu": 31.0}
    assert summary.history[0]["bleu"] == 31.0


def test_a_logged_name_cannot_replace_the_clock(tmp_path: Path) -> None:
    honest = summarise(write_run(tmp_path / "a", "run"))
    forged = summarise(write_run(tmp_path / "b", "run", logged={"seconds": -1.0, "epoch": 99.0}))
    assert [row["epoch"] for row in forged.history] == [0, 1, 2]
    assert forged.history[0]["seconds"] == honest.history[0]["seconds"]


def test_a_cut_last_line_and_a_missing_rank_do_no_harm(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", status=None)
    whole = paths.events_of(0).read_bytes()
    paths.events_of(0).write_bytes(whole[: len(whole) // 2])
    paths.events_of(1).unlink()
    summary = summarise(paths, status="stopped", exit_codes=[143, None])
    assert summary.status == "stopped" and summary.exit_codes == [143, None]
    assert summary.samples and summary.phases.train


def test_status_from_files_alone(tmp_path: Path) -> None:
    assert summarise(write_run(tmp_path, "done")).status == "done"
    assert summarise(write_run(tmp_path, "failed", status="failed")).status == "failed"
    assert summarise(write_run(tmp_path, "stopped", status="stopped")).status == "stopped"
    silent = write_run(tmp_path, "silent", status=None)
    assert summarise(silent).status == "lost"
    half = write_run(tmp_path, "half")
    keep(half, 1, ev.Joined, ev.Steps)
    assert summarise(half).status == "lost"


def test_running_means_that_the_very_controller_lives(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", status=None)
    created = psutil.Process().create_time()
    with claim.hold(paths):
        assert summarise(paths).status == "running"
    assert summarise(paths).status == "lost"
    # What is merely written down could be about anybody.
    paths.controller.write_bytes(msgspec.json.encode({"pid": os.getpid(), "created": created}))
    assert summarise(paths).status == "lost"


def test_what_a_summary_said_is_kept_when_it_is_made_again(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", status=None)
    first = summarise(paths, status="failed", exit_codes=[1, -9])
    paths.summary.write_text(first.to_json())
    again = summarise(paths)
    assert again.status == "failed" and again.exit_codes == [1, -9]
    assert msgspec.json.decode(again.to_json(), type=Summary) == again == first


def test_a_broken_file_reads_as_unknown(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run")
    paths.plan.write_text("{")
    paths.launch.write_text('{"settings": 3}')
    summary = summarise(paths)
    assert summary.strategy == "allreduce" and summary.workers == 2
    assert summary.batch == 128  # the workers say it too


def test_a_switch_is_told_and_only_free_steps_are_stale(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", strategy="switch:at=0.5", epochs=4, steps=10)
    summary = summarise(paths)
    (switch,) = json.loads(summary.to_json())["switches"]
    assert (switch["from"], switch["to"], switch["at_epoch"]) == ("allreduce", "async", 2.0)
    assert sum(summary.staleness.values()) == 2 * 10 * 2


def test_the_step_in_which_the_switch_is_told_is_the_first_new_one(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", strategy="async@0.5/allreduce", epochs=4, steps=10)
    told = []
    for event in ev.read_events(paths.events_of(0)):
        inside = isinstance(event, ev.Switched)
        told.append(msgspec.structs.replace(event, time=event.time + 0.002) if inside else event)
    paths.events_of(0).write_bytes(b"".join(map(ev.encode, told)))
    # Only the first rank tells a switch.
    others = [e for e in ev.read_events(paths.events_of(1)) if not isinstance(e, ev.Switched)]
    paths.events_of(1).write_bytes(b"".join(map(ev.encode, others)))
    free, lockstep = split_phases(read_ranks(paths), "async@0.5/allreduce")
    assert [len(steps) for steps in lockstep.steps] == [20, 20]
    assert sum(len(steps) for steps in free.steps) == 40


def test_the_straggler_is_who_comes_last_not_who_waits(tmp_path: Path) -> None:
    slow = write_run(tmp_path, "slow", workers=3, slow={2: 2.0}, steps=20)
    straggler = summarise(slow).straggler
    assert (straggler.rank, straggler.share) == (2, 1.0)
    assert straggler.seconds > 0
    after_async = write_run(
        tmp_path, "back", strategy="async@0.5/allreduce", epochs=4, slow={1: 2.0}, steps=20
    )
    found = summarise(after_async).straggler
    assert found is not None and found.rank == 1


@pytest.mark.parametrize(("strategy", "workers"), [("allreduce", 2), ("async", 2), ("single", 1)])
def test_no_straggler_without_a_clear_one(tmp_path: Path, strategy: str, workers: int) -> None:
    paths = write_run(tmp_path, "run", strategy=strategy, workers=workers, noise=0.001, steps=50)
    assert summarise(paths).straggler is None


def test_machines_have_their_own_resources(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run")
    paths.machine("other").write_bytes(paths.machine("here").read_bytes())
    summary = summarise(paths)
    here, other = summary.machines
    assert (here.name, here.workers, other.name, other.workers) == ("here", 2, "other", 0)
    cpu = summary.resources.cpu_percent
    assert cpu.avg == pytest.approx(here.resources.cpu_percent.avg)
    assert cpu.min <= cpu.avg <= cpu.max  # type: ignore[operator]
    together = summary.resources.memory_bytes.avg
    assert together == pytest.approx(2 * here.resources.memory_bytes.avg)


def test_a_second_training_adds_to_the_first(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run")
    first = summarise(paths)
    assert first.bytes_sent and first.seconds
    for rank in range(2):
        (joined,) = [e for e in ev.read_events(paths.events_of(rank)) if isinstance(e, ev.Joined)]
        again = msgspec.structs.replace(joined, time=joined.time + 100, wall=joined.wall + 100)
        with paths.events_of(rank).open("ab") as file:
            file.write(ev.encode(again))
    assert summarise(paths).status == "lost", "it has begun again, and nobody controls it"
    for rank in range(2):
        word = ev.Finished(time=1e6, rank=rank, status="done", bytes_sent=5, peak_memory=1)
        with paths.events_of(rank).open("ab") as file:
            file.write(ev.encode(word))
    both = summarise(paths)
    assert both.status == "done"
    assert both.bytes_sent == first.bytes_sent + 10
