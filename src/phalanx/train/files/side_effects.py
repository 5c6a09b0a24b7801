"""Keeps the files of every worker but the first apart from the real ones.

Each worker executes the whole script, which also saves, logs and makes folders. The first worker's
files are the real ones. Another worker writes into a private folder, which is removed at the end,
and reads from there what it has written. This is done in Python's own functions: files of processes
that the script starts, and files that a library opens in native code (but for those listed here),
are written as usual. So are a library's own files (downloads, caches) outside of folders that the
script has made.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from phalanx.core import context, settings
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script import import_hooks
from phalanx.train.files import file_calls as how
from phalanx.train.files.file_calls import Act, Call, announce, lists, opens, reads, scans, writes
from phalanx.train.files.script_files import FirstFiles, PrivateFiles, ScriptFiles

_TORCH = "torch torch.serialization torch.jit torch.export"
_SAFE = "safetensors.torch safetensors.numpy"
_HOOKS: list[tuple[str, str, Act]] = [
    ("builtins io", "open", opens(0, "file")),  # pathlib uses that of io
    ("tarfile", "bltn_open", opens(0, "file")),
    ("bz2", "_builtin_open", opens(0, "file")),
    ("os", "open", opens(0, "path")),
    ("os", "stat lstat readlink access", reads(0, "path", looks=True)),
    ("os", "chdir", reads(0, "path")),
    ("os", "listdir", lists),
    ("os", "scandir", scans),
    ("os", "mkdir", how.makes_folder),
    ("os", "remove unlink rmdir", how.removes),
    ("os", "rename replace", how.renames),
    ("os", "symlink", writes(1, "dst")),
    ("os", "link", how.links),
    ("os", "chmod chown lchown utime truncate", how.changes),
    # pathlib, which keeps its own references to os since Python 3.13
    ("glob", "_StringGlobber.lstat", reads(0, "path", looks=True)),
    ("glob", "_StringGlobber.scandir", scans),
    ("pathlib", "Path.touch", writes(0, "self", keep=True)),
    ("shutil", "rmtree", how.removes),
    ("shutil", "move", how.renames),
    ("shutil", "copy copy2 copyfile copytree", how.copies),
    ("tempfile", "mkdtemp mkstemp NamedTemporaryFile TemporaryFile", how.leaves_alone),
    ("numpy.lib._datasource", "DataSource.open", opens(1, "path")),  # which keeps its own io.open
    (_TORCH, "save RecursiveScriptModule.save", writes(1, "f", always=True)),
    (_TORCH, "load", reads(0, "f")),
    ("torch.onnx", "export", writes(2, "f", always=True)),
    ("torch.utils.tensorboard.writer", "FileWriter.__init__", writes(1, "log_dir", always=True)),
    ("tensorboardX.writer", "FileWriter.__init__", writes(1, "logdir", always=True)),
    ("safetensors", "safe_open", reads(0, "filename")),
    (_SAFE, "save_file save_model", writes(1, "filename", always=True)),
    (_SAFE, "load_file", reads(0, "filename")),
    ("safetensors.torch", "load_model", reads(1, "filename")),
    ("tokenizers", "Tokenizer.save", writes(1, "path", always=True)),
    ("cv2", "imwrite", writes(0, "filename", always=True)),
    ("cv2", "imread", reads(0, "filename")),
    ("h5py", "File.__init__", opens(1, "name")),
]
_TRACKERS = {"WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": "file://{root}/mlruns"}
_BY_NUMBER = frozenset({"dir_fd", "src_dir_fd", "dst_dir_fd", "opener"})
"""Arguments that make a name relative to something that is open already."""


class _Here(threading.local):
    files: ScriptFiles | None = None


_here = _Here()  # for threads that are workers
_process: list[ScriptFiles] = []  # for a process that is a worker, with all its threads
_installed: set[str] = set()
_hooks: dict[Any, Any] = {}


def keep_files_apart(rank: int, paths: RunPaths) -> None:
    """Keep the calling worker's files apart, because it is one of several."""
    _keep_apart(FirstFiles(paths) if rank == 0 else _private(paths))


def keep_all_apart() -> None:
    """Keep all files of a script that is only measured apart from the real ones."""
    paths = RunPaths(Path(os.environ[settings.RUN_FOLDER]))
    files = _private(paths)
    files.noted = True
    _keep_apart(files)


def files_of_child() -> str | None:
    """Make a folder where a child of this worker gets copies of the worker's files, and writes."""
    files = _process[0] if _process else None
    return tempfile.mkdtemp(prefix=f"{files.root}-") if isinstance(files, PrivateFiles) else None


def keep_files_of_child_apart(folder: str | None) -> None:
    """Keep files apart in the calling process, a child whose files its worker must not see."""
    (files,) = _process
    if isinstance(files, PrivateFiles) and folder is not None:
        shutil.copytree(files.root, folder, symlinks=True, dirs_exist_ok=True)
        files.root, files.noted = folder, True


def _keep_apart(files: ScriptFiles) -> None:
    if context.current() is None:
        _process[:] = [files]
    else:
        _here.files = files
    for module in dict.fromkeys(" ".join(modules for modules, _, _ in _HOOKS).split()):
        if module not in _installed:
            _installed.add(module)
            import_hooks.HOOKS.add(module, _put_hooks)


def _private(paths: RunPaths) -> PrivateFiles:
    root = paths.make_private()
    if context.current() is None:
        os.environ.update({key: value.format(root=root) for key, value in _TRACKERS.items()})
    context.call_at_end(functools.partial(_remove, root, os.getpid()))
    one_machine = context.current() is not None or settings.ARENA in os.environ
    return PrivateFiles(root, paths, one_machine)


def stop_keeping() -> None:
    """Write real files from now on: the script knows that it is one of several workers."""
    _here.files = None
    _process.clear()


def _remove(root: str, process: int) -> None:
    if os.getpid() == process:  # a process that the script has forked may end before us
        stop_keeping()
        shutil.rmtree(root, ignore_errors=True)


def _put_hooks(module: Any) -> None:
    for of, names, act in _HOOKS:
        if module.__name__ not in of.split():
            continue
        for name in names.split():
            *owners, last = name.split(".")
            owner = functools.reduce(lambda of, name: getattr(of, name, None), owners, module)
            if (plain := getattr(owner, last, None)) is not None:
                static = isinstance(vars(owner).get(last), staticmethod)
                hook = _hook(plain, act)
                setattr(owner, last, staticmethod(hook) if static else hook)


def _hook(plain: Any, act: Act) -> Any:
    if plain in _hooks:  # another name of the same function: pickle needs one hook for both
        return _hooks[plain]

    @functools.wraps(plain)
    def hook(*args: Any, **kwargs: Any) -> Any:
        files = _here.files or (_process[0] if _process else None)
        if files is None or not _BY_NUMBER.isdisjoint(kwargs):
            return plain(*args, **kwargs)
        if isinstance(files, PrivateFiles):
            return act.carry_out(Call(files, plain, args, kwargs, sys._getframe(1)))
        if isinstance(files, FirstFiles) and (act.makes or act.takes) is not None:
            announce(act, Call(files, plain, args, kwargs, sys._getframe(1)))
        return plain(*args, **kwargs)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if plain in able:  # shutil looks functions up in these sets
            able.add(hook)
    _hooks[plain] = hook
    return hook
