"""The settings of a training under their former name, until the studies import `kinds.settings`."""

from seqloom.lab.kinds.settings import Sizes, TrainSettings

__all__ = ["Sizes", "TrainSettings"]
