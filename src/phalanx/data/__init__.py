"""What workers read: sources, the ledger that gives each sample to one worker, prefetch."""

from phalanx.data.augment import crop_and_flip
from phalanx.data.load import Loaded, Samples, load

__all__ = ["Loaded", "Samples", "crop_and_flip", "load"]
