"""Data: sets of images, their splits, and what is done to them on the device."""

from calibrant.data.batches import Batch, DeviceBatches
from calibrant.data.corruptions import KINDS, corrupt
from calibrant.data.folders import FolderDataset, folder_datasets
from calibrant.data.ood import OutOfDistribution, ood
from calibrant.data.sets import available, load
from calibrant.data.value import Images, Splits

__all__ = [
    "KINDS",
    "Batch",
    "DeviceBatches",
    "FolderDataset",
    "Images",
    "OutOfDistribution",
    "Splits",
    "available",
    "corrupt",
    "folder_datasets",
    "load",
    "ood",
]
