"""A bundle: everything another person needs to run this again, in one ``.tar.gz``.

It holds neither the blueprint nor any environment, since those may have secrets, and no file from
outside the run's folder: the script was copied there when the run began. The same run gives the
same bytes.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import os
import platform
import shlex
import tarfile
from pathlib import Path

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.files import LARGEST_RECORD, read_bounded, write_whole
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.report.load import RunData, StudyData, load_study

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
asynchronous ones repeat only approximately. Times depend on the machine.
{notes}"""


def write_bundle(paths: RunPaths, report: Path, target: Path) -> Path:
    """Pack the run or study in ``paths`` with its ``report`` into ``target``."""
    if target.exists() and not target.is_file():
        raise InputError(f"cannot write the bundle {target}: not a file", "Name another file.")
    study = load_study(paths)
    sources = [source for run in study.runs if (source := _source(run))]
    script = {f"script/{name}": text for name, text in (sources[0] if sources else {}).items()}
    files = _made_files(study, _notes(sources)) | script
    files["report.html"] = report.read_bytes()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        packed = _pack(files, target.name.removesuffix(".gz").removesuffix(".tar"))
        write_whole(target, packed)
    except OSError as error:
        raise InputError(
            f"cannot write the bundle {target}: {error.strerror}", "Name another file."
        ) from error
    return target


def _made_files(study: StudyData, notes: str) -> dict[str, bytes]:
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
        "README.txt": _text(_readme(study, notes)),
    }


def _notes(sources: list[dict[str, bytes]]) -> str:
    if not sources:
        return "\nThe script itself was not found among the files of the run.\n"
    if any(source != sources[0] for source in sources):
        return "\nThe script was changed between the runs; this is the one of the first run.\n"
    return ""


def _readme(study: StudyData, notes: str) -> str:
    # The command as it reads inside the bundle's folder with the script.
    name = Path(study.script).name if study.script else ""
    words = [name if name and Path(word).name == name else word for word in study.command]
    return _README.format(
        kind="study" if study.paths.study.exists() else "run",
        python=platform.python_version(),
        command=shlex.join(words) or "phalanx run SCRIPT",
        notes=notes,
    )


def _source(run: RunData) -> dict[str, bytes]:
    """Return the script and its modules as the run kept them; links are left out."""
    root = run.paths.source
    found: dict[str, bytes] = {}
    if root.is_symlink():
        return found
    left = LARGEST_RECORD
    for folder, _, names in os.walk(root):
        for file in (Path(folder, name) for name in names):
            if file.is_file() and not file.is_symlink():
                found[str(file.relative_to(root))] = content = read_bounded(file, left)
                left -= len(content)
    return found


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
    """Pack a tar without times and owners, in a fixed order."""
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
