"""Readers of published files, on small files in the published form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from calibrant import data
from calibrant.core.errors import InputError


def draw(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.fixture
def svhn_folder(tmp_path):
    (tmp_path / "svhn").mkdir()
    for part, rows in (("train", 30), ("test", 10)):
        labels = (np.arange(rows) % 10 + 1).astype(np.uint8).reshape(-1, 1)  # 10 stands for 0
        content = {"X": draw(32, 32, 3, rows, seed=rows), "y": labels}
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", content)
    return tmp_path


def test_svhn_is_read_with_ten_as_the_digit_zero(svhn_folder):
    splits = data.load("svhn", folder=svhn_folder, validation=0.2)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (24, 6, 10)
    assert splits.test.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    pixels = draw(32, 32, 3, 10, seed=10)
    assert torch.equal(splits.test.images[3, 1], torch.from_numpy(pixels[:, :, 1, 3].copy()))
    assert splits.test.class_names[0] == "0"


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
def test_svhn_files_that_are_cut_short_are_named(svhn_folder, share):
    path = svhn_folder / "svhn" / "test_32x32.mat"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"test_32x32.mat is no file of SVHN"):
        data.load("svhn", folder=svhn_folder)


def test_svhn_files_that_are_missing_or_others_are_named(tmp_path, svhn_folder):
    with pytest.raises(InputError, match=r"train_32x32.mat and test_32x32.mat in a folder svhn"):
        data.load("svhn", folder=tmp_path / "none")
    savemat(svhn_folder / "svhn" / "test_32x32.mat", {"images": np.zeros(3)})
    with pytest.raises(InputError, match="no file of SVHN"):
        data.load("svhn", folder=svhn_folder)


def test_tiny_imagenet_is_read_as_published(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(("n01443537", "n01629819")):
        (root / "train" / wnid / "images").mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("a box a line\n")
        for number in range(6):
            path = root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG"
            Image.new("RGB" if number else "L", (64, 64), 100 * label).save(path)
    (root / "val" / "images").mkdir(parents=True)
    for number in range(4):
        wnid = ("n01629819", "n01443537")[number % 2]
        Image.new("RGB", (64, 64), (10 * number, 0, 0)).save(
            root / "val" / "images" / f"val_{number}.JPEG"
        )
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "test" / "images").mkdir(parents=True)  # published without labels
    splits = data.load("tiny_imagenet", folder=tmp_path, validation=1 / 3)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (8, 4, 4)
    assert splits.test.labels.tolist() == [1, 0, 1, 0]
    assert splits.train.images.shape[1:] == (3, 64, 64)


def test_a_pack_of_tiny_imagenet_comes_first(tmp_path):
    images, labels = draw(4, 64, 64, 3), np.array([0, 1, 0, 1])
    np.savez(
        tmp_path / "tiny_imagenet.npz",
        x_train=images,
        y_train=labels,
        x_test=images[:2],
        y_test=labels[:2],
        classes=np.array(["a", "b"]),
    )
    splits = data.load("tiny_imagenet", folder=tmp_path, validation=0.5)
    assert (len(splits.train), len(splits.test)) == (2, 2)
    with pytest.raises(InputError, match=r"tiny_imagenet was not found: put tiny_imagenet.npz"):
        data.load("tiny_imagenet", folder=tmp_path / "none")


def test_imagenet_folders_are_read_at_224(tmp_path):
    for part, rows in (("train", 4), ("val", 2)):
        for wnid in ("n01440764", "n01443537"):
            (tmp_path / "ILSVRC2012" / part / wnid).mkdir(parents=True)
            for number in range(rows):
                Image.new("RGB", (300, 260), (number, 0, 0)).save(
                    tmp_path / "ILSVRC2012" / part / wnid / f"{wnid}_{number}.JPEG"
                )
    splits = data.load("imagenet", folder=tmp_path, validation=0.5)
    assert splits.test.images.shape == (4, 3, 224, 224)
    assert splits.test.class_names == ("n01440764", "n01443537")


@pytest.fixture
def corrupted(tmp_path):
    place = tmp_path / "CIFAR-10-C"
    place.mkdir()
    np.save(place / "fog.npy", draw(5 * 4, 32, 32, 3))
    np.save(place / "labels.npy", np.tile(np.array([3, 8, 8, 0]), 5))
    return tmp_path


def test_official_corruptions_are_read_by_severity(corrupted):
    pixels = draw(5 * 4, 32, 32, 3)
    for severity in (1, 5):
        images = data.read_corrupted("cifar10", "fog", severity, folder=corrupted)
        expected = pixels[4 * (severity - 1) : 4 * severity].transpose(0, 3, 1, 2)
        assert torch.equal(images.images, torch.from_numpy(expected.copy()))
        assert images.labels.tolist() == [3, 8, 8, 0]
        assert images.num_classes == 10


def test_labels_may_stand_once_for_all_severities(corrupted):
    np.save(corrupted / "CIFAR-10-C" / "labels.npy", np.array([3, 8, 8, 0]))
    images = data.read_corrupted("cifar10", "fog", 2, folder=corrupted)
    assert images.labels.tolist() == [3, 8, 8, 0]


def test_official_corruptions_that_are_missing_or_spoilt_are_named(corrupted):
    with pytest.raises(InputError, match=r"has no snow.npy; it has: fog"):
        data.read_corrupted("cifar10", "snow", 1, folder=corrupted)
    with pytest.raises(InputError, match="put the folder CIFAR-100-C"):
        data.read_corrupted("cifar100", "fog", 1, folder=corrupted)
    with pytest.raises(InputError, match="severity must be"):
        data.read_corrupted("cifar10", "fog", 0, folder=corrupted)
    with pytest.raises(InputError, match="with official corruptions"):
        data.read_corrupted("svhn", "fog", 1, folder=corrupted)
    np.save(corrupted / "CIFAR-10-C" / "fog.npy", draw(5 * 4, 32, 32, 3).astype(float))
    with pytest.raises(InputError, match="bytes of shape"):
        data.read_corrupted("cifar10", "fog", 1, folder=corrupted)
    np.save(corrupted / "CIFAR-10-C" / "fog.npy", draw(5 * 3, 32, 32, 3))
    with pytest.raises(InputError, match="20 labels for 15 images"):
        data.read_corrupted("cifar10", "fog", 1, folder=corrupted)


@pytest.fixture
def corrupted_folders(tmp_path):
    """ImageNet-C and Tiny-ImageNet-C: KIND/SEVERITY/CLASS/*.JPEG."""
    for place, side in (("ImageNet-C", 224), ("Tiny-ImageNet-C", 64)):
        for number, wnid in enumerate(("n01440764", "n01443537")):
            folder = tmp_path / place / "fog" / "3" / wnid
            folder.mkdir(parents=True)
            for row in range(2):
                grey = (100 * number + 10 * row,) * 3
                Image.new("RGB", (side, side), grey).save(folder / f"val_{row}.JPEG")
    return tmp_path


@pytest.mark.parametrize(("name", "side"), [("imagenet", 224), ("tiny_imagenet", 64)])
def test_corrupted_folders_are_read_by_kind_and_severity(corrupted_folders, name, side):
    images = data.read_corrupted(name, "fog", 3, folder=corrupted_folders)
    assert images.images.shape == (4, 3, side, side)
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert images.class_names == ("n01440764", "n01443537")
    greys = images.images.float().mean((1, 2, 3)).tolist()
    assert greys == pytest.approx([0, 10, 100, 110], abs=2)


def test_corrupted_folders_that_are_missing_or_empty_are_named(corrupted_folders, tmp_path):
    with pytest.raises(InputError, match=r"has no fog/4; it has: fog"):
        data.read_corrupted("imagenet", "fog", 4, folder=corrupted_folders)
    with pytest.raises(InputError, match="folders KIND/SEVERITY/CLASS"):
        data.read_corrupted("imagenet", "fog", 3, folder=tmp_path / "none")
    (corrupted_folders / "ImageNet-C" / "snow" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match="has no class folders"):
        data.read_corrupted("imagenet", "snow", 1, folder=corrupted_folders)
