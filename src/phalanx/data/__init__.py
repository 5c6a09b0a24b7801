"""What workers read: sources, readers, the order of a pass, prefetch."""

from phalanx.data.augment import crop_and_flip
from phalanx.data.load import Loaded, Samples, load

__all__ = ["Loaded", "Samples", "crop_and_flip", "load"]
