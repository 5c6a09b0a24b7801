"""A bundle: everything another person needs to run this again, in one ``.tar.gz``.

It holds neither the blueprint nor any environment, since those may know secrets. The same run
gives the same bytes.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import platform
import shlex
import tarfile
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.run_paths import RunPaths
from phalanx.report.html import write_report
from phalanx.report.load import StudyData, load_study
from phalanx.report.local_modules import script_files

_README = """\
This is a Phalanx {kind}, packed so that it can be run again.

  script/            the training script and the modules beside it
  command.txt        the exact command
  requirements.txt   every package that was installed, with its version (Python {python})
  seeds.json         the seed of every run
  data.json          the data that were read, with the checksums of their files
  summary.json       what came out of it
  report.html        the same, to look at

To run it again, with that version of Python:

  python -m venv venv
  venv/bin/pip install -r requirements.txt
  cd script
  {command}

Synchronous strategies repeat bit for bit from the same seed on the same kind of machine;
asynchronous ones repeat only in outline. Times depend on the machine.
{notes}"""


def write_bundle(paths: RunPaths, target: Path) -> Path:
    """Pack the run or study in ``paths`` into ``target``; where it was written."""
    study = load_study(paths)
    report = write_report(paths)
    files = _made_files(study) | _script(study)
    files["report.html"] = report.read_bytes()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_pack(files, target.name.removesuffix(".gz").removesuffix(".tar")))
    except OSError as error:
        raise InputError(
            f"cannot write the bundle {target}: {error.strerror}", "Name another file."
        ) from error
    return target


def _made_files(study: StudyData) -> dict[str, bytes]:
    summaries = [run.summary for run in study.runs]
    data = {d.name: d for s in summaries for d in s.data}
    single = summaries[0] if len(summaries) == 1 and not study.paths.study.exists() else None
    whole = single or {"study": study.title, "runs": summaries}
    return {
        "command.txt": _text(shlex.join(study.command)),
        "requirements.txt": _text("\n".join(_installed())),
        "seeds.json": _json({s.run: s.seed for s in summaries}),
        "data.json": _json([data[name] for name in sorted(data)]),
        "summary.json": _json(whole),
        "README.txt": _text(_readme(study)),
    }


def _readme(study: StudyData) -> str:
    script = _script_path(study)
    notes = ""
    if script is None:
        notes = "\nThe script itself was not found any more when this was packed.\n"
    elif study.started_wall and script.stat().st_mtime > study.started_wall:
        notes = "\nThe script has been changed since the run began.\n"
    return _README.format(
        kind="study" if study.paths.study.exists() else "run",
        python=platform.python_version(),
        command=_command_here(study),
        notes=notes,
    )


def _command_here(study: StudyData) -> str:
    """The command as it reads inside the bundle's ``script`` folder."""
    name = Path(study.script).name if study.script else ""
    words = [name if name and Path(word).name == name else word for word in study.command]
    return shlex.join(words) or "phalanx run SCRIPT"


def _script(study: StudyData) -> dict[str, bytes]:
    script = _script_path(study)
    if script is None:
        return {}
    root = script.parent
    return {f"script/{f.relative_to(root)}": f.read_bytes() for f in script_files(script)}


def _script_path(study: StudyData) -> Path | None:
    path = Path(study.script).resolve() if study.script else None
    return path if path and path.is_file() else None


def _installed() -> list[str]:
    found = {
        (d.metadata["Name"] or "").lower(): f"{d.metadata['Name']}=={d.version}"
        for d in importlib.metadata.distributions()
    }
    return [line for name, line in sorted(found.items()) if name]


def _text(text: str) -> bytes:
    return (text.rstrip("\n") + "\n").encode()


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _pack(files: dict[str, bytes], root: str) -> bytes:
    """A tar without times, owners or chance in its order."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o644, 0
            archive.addfile(entry, io.BytesIO(content))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as compressed:
        compressed.write(plain.getvalue())
    return packed.getvalue()
