"""Data: sets of images, their splits, and what is done to them on the device."""

from calibrant.data.batches import Batch, DeviceBatches
from calibrant.data.sets import available, load
from calibrant.data.value import Images, Splits

__all__ = ["Batch", "DeviceBatches", "Images", "Splits", "available", "load"]
