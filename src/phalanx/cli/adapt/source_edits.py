"""Edits of a source text at the positions of its syntax tree; all other text stays as it is."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from phalanx.core.errors import InputError
from phalanx.core.script.explained import Span

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class SourceEdits:
    def __init__(self, source: bytes, name: str) -> None:
        self._name = name
        self._encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(self._encoding)
        self.tree = ast.parse(text)
        self.lines: list[str] = _LINE.findall(text)
        ending = re.search(r"\r\n|\r|\n", text)
        self._newline = ending[0] if ending else "\n"
        self._replaced: list[tuple[int, int, int, int, str]] = []
        self._inserted: dict[int, list[str]] = {}

    def replace(self, span: Span, text: str) -> None:
        if (*span, text) not in self._replaced:
            self._replaced.append((*span, text))

    def insert_before(self, statement: ast.stmt, *lines: str) -> None:
        """At its indentation, above the comments right before it."""
        line = self.lines[statement.lineno - 1]
        indent = line.encode()[: statement.col_offset].decode()
        if indent.strip():
            raise InputError(
                f"{self._name}:{statement.lineno} has several statements in one line",
                "Give each its own line.",
            )
        number = statement.lineno
        while number > 1 and self.lines[number - 2].startswith(f"{indent}#"):
            number -= 1
        self.insert_line(number, *(f"{indent}{text}" for text in lines))

    def insert_line(self, number: int, *lines: str) -> None:
        """Before line ``number``."""
        self._inserted.setdefault(number, []).extend(lines)

    def text_of(self, span: Span) -> str:
        first, begin, last, end = span
        found = [line.encode() for line in self.lines[first - 1 : last]]
        found[-1] = found[-1][:end]
        found[0] = found[0][begin:]
        return b"".join(found).decode()

    @property
    def before(self) -> str:
        return "".join(self.lines)

    @property
    def after(self) -> str:
        lines = list(self.lines)
        for first, begin, last, end, text in sorted(self._replaced, reverse=True):
            head, tail = lines[first - 1].encode()[:begin], lines[last - 1].encode()[end:]
            whole = head.decode() + text + tail.decode()
            lines[first - 1 : last] = [whole, *[""] * (last - first)]
        for number in sorted(self._inserted, reverse=True):
            if number > len(lines) and lines and not lines[-1].endswith(("\r", "\n")):
                lines[-1] += self._newline
            lines[number - 1 : number - 1] = [t + self._newline for t in self._inserted[number]]
        return "".join(lines)

    def encoded(self) -> bytes:
        return self.after.encode(self._encoding)
