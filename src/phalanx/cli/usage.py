"""Usage errors in Phalanx's words: the mistake, and the nearest correct option or command.

The parser's exceptions are recognised by their attributes, because the module of their classes
depends on the installed version of typer.
"""

from __future__ import annotations

import errno
import re
from typing import Any

from phalanx.cli.invocation import PASS_WORDS_ON, Invocation
from phalanx.core.errors import InputError, MachineError, PhalanxError
from phalanx.core.registry import did_you_mean
from phalanx.core.script.missing_packages import missing_package


def explain(error: Any, invocation: Invocation) -> PhalanxError:
    """Turn a usage error into an :class:`InputError`; anything else is reported as a defect."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        return MachineError(f"the disk is full{where}", "Free some space, then try again.")
    if isinstance(error, ModuleNotFoundError) and (missing := missing_package(error)):
        return missing
    if not hasattr(error, "format_message"):
        return PhalanxError(
            f"unexpected {type(error).__name__}: {error}",
            "This is a defect of Phalanx: report it, with what PHALANX_DEBUG=1 shows.",
        )
    context = getattr(error, "ctx", None)
    path = context.command_path if context else " ".join(["phalanx", *invocation.ours[:1]])
    if hasattr(error, "possibilities") and context:
        return _no_such_option(error.option_name, path, context)
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    help_line = f"See: {path} --help"
    if found := re.search(r"unexpected extra arguments? ?\(?s?\)? ?\((.*)\)", text):
        remedy = "Arguments for the script go after --." if _passes_on(path) else help_line
        return InputError(f"'{path}' does not take '{found[1]}'", remedy)
    option = (getattr(getattr(error, "param", None), "opts", None) or [""])[0]
    if option.startswith("-") and "valid integer" in text:
        value = _value_of(option, invocation)
        return InputError(f"{option} must be a whole number, not '{value}'", help_line)
    return InputError(text[:1].lower() + text[1:], help_line)


def _no_such_option(option: str, path: str, context: Any) -> InputError:
    known = [name for parameter in context.command.params for name in parameter.opts]
    options = [name for name in known if name.startswith("--")]
    remedy = did_you_mean(option, options)
    if _passes_on(path):
        near = remedy if remedy.startswith("Did") else f"See: {path} --help."
        remedy = f"{near} The script's options go after --: {path} SCRIPT -- {option}"
    return InputError(f"'{path}' has no option '{option}'", remedy)


def _passes_on(path: str) -> bool:
    return path.rpartition(" ")[2] in PASS_WORDS_ON


def _value_of(option: str, invocation: Invocation) -> str:
    for word, after in zip(invocation.ours, [*invocation.ours[1:], ""], strict=True):
        if word == option:
            return after
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
