"""Find the run that a verb means, with or without a name, and read its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths, find_run, list_runs, runs_home
from phalanx.observe.summary.run_records import StudyRecord, read_record, study_folders
from phalanx.observe.summary.run_status import controller_alive
from phalanx.observe.summary.summary import Summary, read_summary, summarise

if TYPE_CHECKING:
    from phalanx.launch.launcher import Job


def study_runs(paths: RunPaths) -> list[RunPaths]:
    """The runs of a study, in the order they were made, without those that were removed."""
    record = read_record(paths.study, StudyRecord)
    siblings = study_folders(paths, record) if record else []
    return [run for run in siblings if run.launch.exists()]


def for_report(name: str | None) -> RunPaths:
    """Return the named run or study; without a name the newest run, or the study that has it."""
    found = find_run(name)
    if name is None and not found.study.exists():
        for study in (run for run in reversed(list_runs()) if run.study.exists()):
            if found.id in [run.id for run in study_runs(study)]:
                return study
    _check_is_run(found)
    return found


def for_logs(name: str | None) -> RunPaths:
    """Return a single run: the named one, the newest of a named study, or the newest of all."""
    if name is not None:
        found = find_run(name)
        _check_is_run(found)
        if not found.study.exists():
            return found
        candidates = study_runs(found)
    else:
        candidates = [run for run in list_runs() if not run.study.exists()]
    if not candidates:
        where = f"study '{name}'" if name else str(runs_home())
        raise InputError(f"there are no runs in {where}", "Start one: phalanx demo")
    return candidates[-1]


def detached(name: str | None) -> RunPaths:
    """Return the named run, or else the newest one that trains without a controller."""
    if name is not None:
        return find_run(name)
    found = [run for run in list_runs() if run.detached.exists()]
    if not found:
        raise InputError("no run is detached", "List runs: phalanx runs")
    return found[-1]


def running(name: str | None) -> RunPaths | None:
    """Return the newest run in progress, of all or of the named study, else the named run."""
    if name is None:
        candidates = list_runs()
    else:
        found = for_report(name)
        candidates = study_runs(found) if found.study.exists() else [found]
    alive = [run for run in candidates if controller_alive(run) or run.detached.exists()]
    if alive:
        return alive[-1]
    return candidates[-1] if name is not None and candidates else None


def single_run(name: str | None, verb: str) -> RunPaths:
    """Return the newest run, or the named one, which must not be a study."""
    if name is not None and (study := find_run(name)).study.exists():
        runs = study_runs(study)
        remedy = f"Name one of its runs, such as '{runs[-1].id}'." if runs else "It has no runs."
        raise InputError(f"'{study.id}' is a study of {len(runs)} runs: {verb} takes one", remedy)
    return for_logs(name)


def summary_of(paths: RunPaths) -> Summary:
    """Return the written summary, or make one from the run's files."""
    return read_summary(paths) or summarise(paths)


def _check_is_run(paths: RunPaths) -> None:
    if not paths.launch.exists() and not paths.study.exists():
        raise InputError(f"{paths.folder} is not a run", "List runs: phalanx runs")


def past_job(paths: RunPaths, pool: Path | None) -> Job:
    """Return the job of a past run, on the machines of its blueprint or of ``pool``."""
    from phalanx.core.run_folder.trust import refuse_foreign
    from phalanx.launch.launcher import Fleet, Job, read_launch
    from phalanx.pool.blueprint import read_blueprint

    launch, plan = read_launch(paths)
    if pool is None:
        would = f"contact the machines of {launch.pool or 'a blueprint'}"
        refuse_foreign(paths, would, "Give your own blueprint of these machines: --pool FILE")
    file = pool or (Path(launch.pool) if launch.pool else None)
    if file is None:
        raise InputError(f"'{paths.id}' has no record of its blueprint", "Give --pool FILE.")
    known = {machine.name: machine for machine in read_blueprint(file).machines}
    names = [machine.name for machine in plan.machines]
    missing = [name for name in names if name not in known]
    if missing:
        raise InputError(
            f"{file} has no {', '.join(missing)}, on which '{paths.id}' ran", "Give --pool FILE."
        )
    return Job(
        script=Path(launch.script),
        arguments=launch.arguments,
        settings=launch.settings,
        plan=plan,
        launcher=launch.launcher,
        command=launch.command,
        fleet=Fleet(machines=tuple(known[name] for name in names), pool=file),
        framework=launch.framework,
    )
