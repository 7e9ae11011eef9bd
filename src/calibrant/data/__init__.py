"""Data: sets of images, their splits, and what is done to them on the device."""

from calibrant.data.batches import Batch, DeviceBatches
from calibrant.data.corruptions import KINDS, corrupt
from calibrant.data.datasets import available, load, register
from calibrant.data.image_folder import FolderDataset, folder_datasets
from calibrant.data.images import Images, Splits
from calibrant.data.official import read_corrupted
from calibrant.data.ood import OutOfDistribution, ood

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
    "read_corrupted",
    "register",
]
