"""A YAML or JSON file as a tree in which every key and value has its line and column.

It is parsed by ruamel.yaml, which gives the position of every node (pydantic cannot; PyYAML reads
YAML 1.1, where ``no`` is false, ``1:30`` is ninety and ``0123`` is eighty-three). The tree is
composed but never constructed: values stay the text that was written, no tag can make an object,
and aliases are never expanded, so that a file with many of them stays small.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from phalanx.core.errors import InputError

SIZE_LIMIT = 1024 * 1024
MOST_DEEP = 200
"""The most brackets that may be open at once; those in texts count too."""
_CORRECT = "Correct it there, or just before."
QUOTES = "Put a value that begins with one of * & ! % @ # in quotes."
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\s+|"')
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "timestamp")}


@dataclass(frozen=True)
class Entry:
    """A key of a mapping and its value."""

    key: str
    key_node: Node
    value: Node


@dataclass(frozen=True)
class Document:
    """A parsed file; ``private`` when only its owner can read it."""

    path: Path
    private: bool
    root: Node | None
    warnings: tuple[str, ...] = ()
    """Repairs that were necessary to read it."""

    def fault(self, node: Node | None, problem: str, remedy: str = "") -> InputError:
        """Return the error for a ``problem`` at ``node``, with file, line and column."""
        if node is None:
            return InputError(f"{self.path}: {problem}", remedy)
        mark = node.start_mark
        return InputError(f"{self.path}:{mark.line + 1}:{mark.column + 1}: {problem}", remedy)

    def mapping(self, node: Node, what: str) -> list[Entry]:
        """Return the entries of a mapping; refuse a key that is in it twice."""
        if not isinstance(node, MappingNode):
            raise self.fault(
                node, f"{what} must be a mapping (NAME: VALUE), not {_kind(node)}", EXAMPLE
            )
        found: dict[str, Entry] = {}
        for key_node, value in node.value:
            entry = Entry(self._key(key_node, what), key_node, value)
            if entry.key in found:
                first = found[entry.key].key_node.start_mark.line + 1
                raise self.fault(
                    key_node,
                    f"'{entry.key}' is in {what} twice (first in line {first})",
                    "Remove or rename one of them.",
                )
            found[entry.key] = entry
        return list(found.values())

    def sequence(self, node: Node, what: str) -> list[Node]:
        if not isinstance(node, SequenceNode):
            raise self.fault(node, f"{what} must be a list, not {_kind(node)}")
        return list(node.value)

    def text(self, node: Node, what: str) -> str:
        """Return a value as it was written. No error quotes the value, which may be a secret."""
        if not isinstance(node, ScalarNode):
            raise self.fault(node, f"{what} must be a single value, not {_kind(node)}")
        if str(node.tag) not in _PLAIN_TAGS:
            raise self.fault(node, f"{what} has a YAML tag, which is not supported", QUOTES)
        if str(node.tag) == _TAG + "null":
            raise self.fault(node, f"{what} has no value", "Give it one, or remove it.")
        return _join_surrogates(str(node.value))

    def _key(self, node: Node, what: str) -> str:
        if not isinstance(node, ScalarNode):
            raise self.fault(node, f"a key of {what} must be a single word")
        if str(node.tag) == _TAG + "merge":
            raise self.fault(
                node,
                "merge keys (<<) are not supported",
                "Put what machines share into 'defaults'.",
            )
        return _join_surrogates(str(node.value))


EXAMPLE = "For example: machines: {alpha: {host: 192.0.2.10, gpus: 1}}"


def read_document(path: Path) -> Document:
    """Read and parse ``path``; any mistake in it is an :class:`InputError`."""
    content, private = _read(path)
    text = _decode(path, content)
    # Checked before parsing, because a parser would take seconds, or exhaust the stack.
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        if depth > MOST_DEEP:
            raise _too_deep(path)
    warnings: list[str] = []
    if path.suffix.lower() == ".json":
        if '"connections"' in text:  # the old form, whose printed examples are not quite JSON
            text, commas, quotes = mended_json(text)
            if commas or quotes:
                warnings.append(
                    f"{path}: {commas} commas and {quotes} pairs of quotes were missing"
                )
        _check_json(path, text)
        # Strings of valid JSON have no tabs. YAML accepts spaces, and columns stay the same.
        text = text.replace("\t", " ")
    return Document(path, private, _compose(path, text), tuple(warnings))


def _read(path: Path) -> tuple[bytes, bool]:
    try:
        # Not blocking, because opening a pipe would wait for somebody to write to it.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file", "Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}", "Check its permissions.") from None
    try:
        status = os.fstat(number)
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{path}: is a directory", "Give the blueprint file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: is not a regular file", "Give a blueprint file.")
        with os.fdopen(os.dup(number), "rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    finally:
        os.close(number)
    if len(content) > SIZE_LIMIT:
        raise InputError(f"{path}: is larger than 1 MiB", "Check the path: a blueprint is small.")
    return content, status.st_mode & 0o077 == 0


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        where = _place(before.decode("latin-1"))
        problem = f"byte 0x{content[error.start]:02x} is not UTF-8 text"
        raise InputError(f"{path}:{where}: {problem}", "Save the file as UTF-8.") from None


def _place(before: str) -> str:
    """Return LINE:COLUMN of the character after ``before``."""
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def mended_json(text: str) -> tuple[str, int, int]:
    """Return valid JSON, if the text lacks only commas, and quotes around yes and no; and how many
    commas and words in quotes were added."""
    found: list[str] = []
    commas, quotes, before = 0, 0, ""
    for token in _TOKENS.findall(text):
        if not token.isspace():
            if before and before not in "{[:," and token not in "}]:,":
                found.append(",")
                commas += 1
            before = token
        bare = token.lower() in ("yes", "no")
        quotes += bare
        found.append(f'"{token}"' if bare else token)
    return "".join(found), commas, quotes


def _check_json(path: Path, text: str) -> None:
    """Refuse what YAML would let pass in a file that calls itself JSON."""
    try:
        json.loads(text or "{}", parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        problem = f"{path}:{error.lineno}:{error.colno}: broken JSON: {error.msg}"
        raise InputError(problem, _CORRECT) from None


def _compose(path: Path, text: str) -> Node | None:
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        raise _syntax_error(path, error) from None
    except ReaderError as error:
        where = _place(text[: error.position])
        raise InputError(
            f"{path}:{where}: a character that is not text", "Check that this file is a blueprint."
        ) from None
    except YAMLError:
        raise InputError(f"{path}: broken YAML", EXAMPLE) from None
    except RecursionError:
        raise _too_deep(path) from None
    return root


def _syntax_error(path: Path, error: MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    problem = " ".join((error.problem or error.context or "unreadable").split())
    # These messages quote the file's text, which may be an unquoted password.
    secretive = re.match(r"found (undefined|unknown|duplicate) (alias|anchor|tag|escape)", problem)
    if secretive or "alias" in problem or "anchor" in problem or "directive" in problem:
        return InputError(f"{path}{where}: broken YAML: a special character", QUOTES)
    return InputError(f"{path}{where}: broken YAML: {problem}", _CORRECT)


def _too_deep(path: Path) -> InputError:
    return InputError(f"{path}: is nested too deeply", EXAMPLE)


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return "a single value"


def _join_surrogates(text: str) -> str:
    r"""Join characters beyond 16 bits, which JSON writes as two escapes and YAML reads as two."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
