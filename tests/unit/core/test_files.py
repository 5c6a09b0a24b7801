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


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def disk_full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", disk_full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "precious"
    elsewhere.write_text("precious")
    path = tmp_path / "record.json"
    path.symlink_to(elsewhere)
    write_whole(path, "new")

    assert elsewhere.read_text() == "precious"
    assert path.read_text() == "new" and not path.is_symlink()
