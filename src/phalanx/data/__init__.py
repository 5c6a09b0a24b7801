"""What workers read: sources, readers, the order of a pass, prefetch."""

from typing import TYPE_CHECKING, Any

from phalanx.data.augment import crop_and_flip
from phalanx.data.load import Loaded, Samples, load

if TYPE_CHECKING:
    from phalanx.data.blocks.read import read


def __getattr__(name: str) -> Any:
    """Import block readers only when used, because most scripts read no blocks."""
    if name != "read":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from phalanx.data.blocks.read import read

    return read


__all__ = ["Loaded", "Samples", "crop_and_flip", "load", "read"]
