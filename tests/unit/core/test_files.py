from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.files import write_whole


@pytest.mark.parametrize("content", ["one\nünï\n", b"\x00\xff"])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "record.json"
    path.write_text("a longer text that was there before")
    write_whole(path, content)

    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def disk_full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", disk_full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
