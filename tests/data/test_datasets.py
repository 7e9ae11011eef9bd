"""Load data sets by name: packs, the official archives, digits."""

from __future__ import annotations

import hashlib
import io
import tarfile

import numpy as np
import pytest
import torch

from calibrant import data
from calibrant.core.errors import InputError
from calibrant.data import cifar as cifar_module
from calibrant.data.packs import read_pack


def write_pack(path, rows=40, classes=4, **more):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8),
        "y_train": np.arange(rows) % classes,
        "x_test": rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8),
        "y_test": np.arange(12) % classes,
        "classes": np.array([f"c{k}" for k in range(classes)]),
        **more,
    }
    np.savez(path, **arrays)
    return arrays


def write_archive(folder, name):
    """A stand-in for an official binary archive: 20 training and 6 test images."""
    archive = cifar_module.ARCHIVES[name]
    rng = np.random.default_rng(1)
    classes = 10 if name == "cifar10" else 100
    written = {}
    with tarfile.open(folder / archive.file, "w:gz") as packed:

        def add(file, content):
            info = tarfile.TarInfo(f"{archive.inside}/{file}")
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))

        add(archive.names, "\n".join(f"n{k}" for k in range(classes)).encode())
        for file in (*archive.train, *archive.test):
            rows = rng.integers(0, 256, (4, archive.label_bytes + 3072), dtype=np.uint8)
            rows[:, : archive.label_bytes] %= classes
            written[file] = rows
            add(file, rows.tobytes())
    md5 = hashlib.md5((folder / archive.file).read_bytes(), usedforsecurity=False).hexdigest()
    return archive._replace(md5=md5), written


class TestCifar:
    @pytest.mark.parametrize("name", ["cifar10", "cifar100"])
    def test_official_archive(self, name, tmp_path, monkeypatch):
        archive, written = write_archive(tmp_path, name)
        monkeypatch.setitem(cifar_module.ARCHIVES, name, archive)
        train, test = cifar_module.cifar(name, tmp_path)
        rows = np.concatenate([written[file] for file in archive.train])
        assert train.images.shape == (len(rows), 3, 32, 32)
        # A row is its labels, the fine one last, then 1,024 bytes each of red, green, blue.
        assert train.labels.tolist() == rows[:, archive.label_bytes - 1].tolist()
        assert train.images[1, 2, 3, 5] == rows[1, archive.label_bytes + 2 * 1024 + 3 * 32 + 5]
        assert len(test) == 4
        assert train.class_names[3] == "n3"

    def test_damaged_archive_is_refused(self, tmp_path):
        write_archive(tmp_path, "cifar10")
        with pytest.raises(InputError, match="checksum"):
            cifar_module.cifar("cifar10", tmp_path)

    def test_absent_set_says_where_to_put_it(self, tmp_path, monkeypatch):
        monkeypatch.delenv("CALIBRANT_DATA", raising=False)
        with pytest.raises(InputError, match=r"CALIBRANT_DATA.*--download"):
            data.load("cifar10")
        with pytest.raises(InputError, match=r"cifar-100-binary\.tar\.gz"):
            data.load("cifar100", folder=tmp_path)
        (tmp_path / "cifar-10-python.tar.gz").touch()
        with pytest.raises(InputError, match="pickled form"):
            data.load("cifar10", folder=tmp_path)

    def test_download_is_checked(self, tmp_path, monkeypatch):
        source = tmp_path / "there"
        source.mkdir()
        archive, _ = write_archive(source, "cifar10")
        monkeypatch.setattr(cifar_module, "HOME", source.as_uri())
        with pytest.raises(InputError, match="nothing was kept"):
            data.load("cifar10", folder=tmp_path / "here", download=True)
        assert list((tmp_path / "here").iterdir()) == []
        monkeypatch.setitem(cifar_module.ARCHIVES, "cifar10", archive)
        splits = data.load("cifar10", folder=tmp_path / "here", download=True, validation=0.25)
        assert len(splits.train) == 15
        assert (tmp_path / "here" / archive.file).is_file()
        monkeypatch.setattr(cifar_module, "HOME", (tmp_path / "nowhere").as_uri())
        with pytest.raises(InputError, match="could not be downloaded"):
            data.load("cifar10", folder=tmp_path / "other", download=True)

    def test_pack_comes_first(self, tmp_path, monkeypatch):
        arrays = write_pack(tmp_path / "cifar10.npz")
        monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path))
        splits = data.load("cifar10", validation=8, seed=3)
        assert (len(splits.train), len(splits.validation), len(splits.test)) == (32, 8, 12)
        assert splits.test.images[2, 1, 3, 4] == arrays["x_test"][2, 3, 4, 1]
        other = data.load("cifar10", validation=8, seed=4)
        assert not torch.equal(other.validation.images, splits.validation.images)


class TestPacks:
    def test_dense_with_void_and_own_validation(self, tmp_path):
        rng = np.random.default_rng(2)
        masks = rng.integers(0, 5, (40, 8, 8)).astype(np.uint8)
        write_pack(
            tmp_path / "camvid.npz",
            y_train=masks,
            y_test=masks[:12],
            x_validation=np.zeros((3, 8, 8, 3), np.uint8),
            y_validation=masks[:3],
            void=np.array(4),
        )
        splits = data.load("camvid", folder=tmp_path)
        assert splits.train.is_dense
        assert len(splits.train) == 40
        assert len(splits.validation) == 3
        assert torch.equal(splits.train.labels == -100, torch.from_numpy(masks == 4))

    def test_bad_packs(self, tmp_path):
        path = tmp_path / "a.npz"
        path.write_bytes(b"nonsense")
        with pytest.raises(InputError, match="cannot be read"):
            read_pack(path)
        np.savez(path, x_train=np.zeros(3))
        with pytest.raises(InputError, match="missing: y_train"):
            read_pack(path)
        write_pack(path, y_test=np.arange(12))
        with pytest.raises(InputError, match=r"0\.\.3, found 0 to 11"):
            read_pack(path)
        with pytest.raises(InputError, match="camvid was not found"):
            data.load("camvid", folder=tmp_path)

    def test_grey_images(self, tmp_path):
        write_pack(tmp_path / "g.npz", x_train=np.zeros((40, 8, 8), np.uint8))
        assert read_pack(tmp_path / "g.npz")[0].images.shape == (40, 1, 8, 8)


class TestLoad:
    def test_digits(self):
        splits = data.load("digits")
        assert len(splits.train) + len(splits.validation) + len(splits.test) == 1797
        assert splits.train.images.shape[1:] == (1, 8, 8)
        assert int(splits.train.images.max()) == 255
        again = data.load("digits", seed=5)
        assert torch.equal(again.test.images, splits.test.images)
        assert not torch.equal(again.train.images, splits.train.images)

    def test_long_tail_halves_what_is_left(self, tmp_path):
        write_pack(tmp_path / "cifar10.npz", rows=400)
        splits = data.load("cifar10", folder=tmp_path, long_tail=0.1)
        both = torch.cat((splits.train.labels, splits.validation.labels))
        assert torch.bincount(both).tolist() == [100, 46, 21, 10]
        assert abs(len(splits.train) - len(splits.validation)) <= 1

    def test_unknown_name(self):
        with pytest.raises(InputError, match="Did you mean cifar10"):
            data.load("cifar_10")
        assert "digits" in data.available()
