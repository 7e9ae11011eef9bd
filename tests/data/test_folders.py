"""Image folders, folders of images and masks, and pairs of data sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from calibrant import data
from calibrant.core.errors import InputError
from calibrant.data.dense_folder import CAMVID, VOC, dense_pairs
from calibrant.data.image_folder import find_parts, image_folder
from calibrant.data.ood import convert_channels, resize

Image = pytest.importorskip("PIL.Image")


def write(path, height=8, width=8, colour=None, seed=0):
    """A PNG, so that what is read is what was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if colour is not None:
        pixels[:] = colour
    Image.fromarray(pixels).save(path, "PNG")
    return pixels


def write_classes(root, parts=("train", "val", "test"), classes=("cat", "dog"), each=5):
    written = {}
    for number, part in enumerate(parts):
        for label, name in enumerate(classes):
            for row in range(each):
                file = root / part / name / f"{row}.png"
                written[part, label, row] = write(file, seed=hash((number, label, row)) % 2**31)
    return written


class TestImageFolder:
    def test_three_parts(self, tmp_path):
        written = write_classes(tmp_path)
        train, validation, test = image_folder(tmp_path)
        assert train.class_names == ("cat", "dog")
        assert [len(part) for part in (train, validation, test)] == [10, 10, 10]
        assert test.labels.tolist() == [0] * 5 + [1] * 5
        expected = torch.from_numpy(written["test", 1, 3]).permute(2, 0, 1)
        assert torch.equal(test.images[8], expected)
        splits = data.load(f"folder:{tmp_path}")
        assert torch.equal(splits.validation.images, validation.images)
        assert len(splits.mean) == 3

    @pytest.mark.parametrize("name", ["val", "validation"])
    def test_without_a_test_part_val_is_the_test_part(self, name, tmp_path):
        write_classes(tmp_path, ("train", name), each=10)
        splits = data.load(f"folder:{tmp_path}", validation=0.2, seed=3)
        assert (len(splits.train), len(splits.validation), len(splits.test)) == (16, 4, 20)
        assert torch.bincount(splits.validation.labels).tolist() == [2, 2]
        assert torch.equal(splits.test.images, image_folder(tmp_path)[1].images)

    def test_tiny_imagenet(self, tmp_path):
        """Its train has `images` folders and lists of boxes, its val a list, its test no labels."""
        for name in ("n01", "n02", "n03"):
            for row in range(4):
                write(tmp_path / "train" / name / "images" / f"{name}_{row}.JPEG", seed=row)
            (tmp_path / "train" / name / f"{name}_boxes.txt").write_text("n01_0.JPEG\t0\t0\t1\t1\n")
        lines = []
        for row, name in enumerate(("n03", "n01", "n03", "n02")):
            write(tmp_path / "val" / "images" / f"val_{row}.JPEG", colour=10 * row)
            lines.append(f"val_{row}.JPEG\t{name}\t0\t32\t44\t62\n")
        (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
        write(tmp_path / "test" / "images" / "test_0.JPEG")
        train, test = image_folder(tmp_path)
        assert len(train) == 12
        assert test.labels.tolist() == [2, 0, 2, 1]
        assert test.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
        (tmp_path / "val" / "val_annotations.txt").write_text("gone.JPEG\tn01\t0\n")
        with pytest.raises(InputError, match=r"lists 1 missing files: gone\.JPEG"):
            image_folder(tmp_path)
        (tmp_path / "val" / "val_annotations.txt").write_text("\nval_0.JPEG\tn09\t0\n")
        with pytest.raises(InputError, match="line 2: 'n09' is not a class"):
            image_folder(tmp_path)

    @pytest.mark.parametrize(("height", "width"), [(40, 20), (20, 50), (10, 10), (5, 9)])
    def test_size_scales_the_shorter_side_and_keeps_the_middle(self, height, width, tmp_path):
        for part in ("train", "test"):
            file = tmp_path / part / "a" / "0.png"
            write(file, height, width)
        # Bands across the longer side: the outer ones are cut off, the middle one stays.
        pixels = np.zeros((height, width, 3), np.uint8)
        longer, short = max(height, width), min(height, width)
        first = (longer - short) // 2
        inner = slice(first, first + short)
        pixels[(inner, slice(None)) if height > width else (slice(None), inner)] = 200
        Image.fromarray(pixels).save(file)
        images = image_folder(tmp_path, size=10)[1].images
        assert images.shape == (1, 3, 10, 10)
        assert (images[..., 2:-2, 2:-2] == 200).all()
        assert float(images.float().mean()) > 180

    def test_grey_palette_and_wide_images(self, tmp_path):
        write_classes(tmp_path, ("train", "test"))
        Image.fromarray(np.full((8, 8), 7, np.uint8)).save(tmp_path / "train/cat/0.png")
        Image.fromarray(np.full((8, 8, 4), 9, np.uint8)).save(tmp_path / "train/cat/1.png")
        train, _ = image_folder(tmp_path)
        assert (train.images[0] == 7).all()
        assert (train.images[1] == 9).all()
        Image.fromarray(np.full((8, 8), 700, np.uint16)).save(tmp_path / "train/cat/2.png")
        named = r"1 of 10 files.*2\.png \(mode I(;16)?: expected 8 bits"
        with pytest.raises(InputError, match=named):
            image_folder(tmp_path)

    def test_files_that_are_not_images_are_named(self, tmp_path):
        write_classes(tmp_path)
        (tmp_path / "train/cat/1.png").write_text("hello")
        broken = (tmp_path / "train/dog/2.png").read_bytes()
        (tmp_path / "train/dog/2.png").write_bytes(broken[: len(broken) // 2])
        with pytest.raises(InputError, match=r"2 of 10 files") as caught:
            image_folder(tmp_path)
        assert f"{tmp_path / 'train/cat/1.png'} (not an image)" in str(caught.value)
        assert str(tmp_path / "train/dog/2.png") in str(caught.value)

    def test_sizes_that_differ_need_a_size(self, tmp_path):
        write_classes(tmp_path)
        write(tmp_path / "train/dog/2.png", 9, 12)
        with pytest.raises(InputError, match=r"dog/2\.png \(9x12, others 8x8: give a size\)"):
            data.load(f"folder:{tmp_path}")
        assert data.load(f"folder:{tmp_path}", size=8).train.images.shape == (10, 3, 8, 8)

    def test_too_much_memory_is_refused_and_streaming_named(self, tmp_path):
        write_classes(tmp_path)
        with pytest.raises(InputError, match=r"30 images of 64x64 need .*folder_datasets"):
            image_folder(tmp_path, size=64, limit=30 * 3 * 64 * 64 - 1)
        assert image_folder(tmp_path, size=64, limit=30 * 3 * 64 * 64)

    def test_other_forms_are_explained(self, tmp_path):
        with pytest.raises(InputError, match="found nothing"):
            image_folder(tmp_path)
        (tmp_path / "pictures").mkdir()
        with pytest.raises(InputError, match=r"train/<class>.*found pictures"):
            image_folder(tmp_path)
        write_classes(tmp_path, ("train",))
        with pytest.raises(InputError, match="there are no test images"):
            image_folder(tmp_path)
        write_classes(tmp_path, ("val",), classes=("cat", "cow"))
        with pytest.raises(InputError, match="classes missing from train: cow"):
            image_folder(tmp_path)
        write_classes(tmp_path, ("test",))
        (tmp_path / "train/eel").mkdir()
        (tmp_path / "train/eel/readme.txt").touch()
        with pytest.raises(InputError, match=r"without images: .*eel \(holds readme\.txt\)"):
            image_folder(tmp_path)

    def test_long_tail_with_own_validation_is_refused(self, tmp_path):
        write_classes(tmp_path)
        with pytest.raises(InputError, match="its own validation rows"):
            data.load(f"folder:{tmp_path}", long_tail=0.1)

    def test_size_of_named_sets(self):
        with pytest.raises(InputError, match="digits has its own size"):
            data.load("digits", size=8)
        assert "folder:PATH" in data.available()


class TestStreaming:
    def test_gives_what_memory_holds(self, tmp_path):
        write_classes(tmp_path, ("train", "val"), each=10)
        splits = data.load(f"folder:{tmp_path}", validation=0.2, seed=3, size=6)
        train, validation, test = data.folder_datasets(
            tmp_path, size=6, validation=0.2, seed=3, mean=splits.mean, std=splits.std
        )
        mean = torch.tensor(splits.mean)[:, None, None]
        std = torch.tensor(splits.std)[:, None, None]
        for streamed, held in (
            (train, splits.train),
            (validation, splits.validation),
            (test, splits.test),
        ):
            result = list(DataLoader(streamed, batch_size=7, num_workers=0))
            inputs = torch.cat([batch[0] for batch in result])
            assert torch.allclose(inputs, (held.images / 255 - mean) / std, atol=1e-5)
            assert torch.equal(torch.cat([batch[1] for batch in result]), held.labels)
            assert torch.cat([batch[2] for batch in result]).tolist() == list(range(len(held)))

    def test_moments_of_all_where_few(self, tmp_path):
        write_classes(tmp_path, each=10)
        splits = data.load(f"folder:{tmp_path}")
        train, validation, _ = data.folder_datasets(tmp_path, size=8)
        assert train.mean == pytest.approx(splits.mean)
        assert train.std == pytest.approx(splits.std)
        assert len(validation) == 20

    def test_workers_and_changes(self, tmp_path):
        write_classes(tmp_path)
        train, validation, _ = data.folder_datasets(
            tmp_path, size=8, mean=(0, 0, 0), std=(1, 1, 1), change=torch.zeros_like
        )
        result = list(DataLoader(train, batch_size=4, num_workers=1))
        assert not any(batch[0].any() for batch in result)
        assert validation[0][0].any()
        assert validation[0][0].dtype == torch.float32

    def test_broken_file_is_named(self, tmp_path):
        write_classes(tmp_path)
        train, _, _ = data.folder_datasets(tmp_path, size=8)
        (tmp_path / "train/cat/0.png").write_text("hello")
        with pytest.raises(InputError, match=r"cat/0\.png cannot be read"):
            train[0]


def write_pairs(root, parts=("train", "val", "test"), size=(6, 8), classes=3, form="{part}/{kind}"):
    """Images and masks; the mask of pixel values 255 is void."""
    written = {}
    for number, part in enumerate(parts):
        for row in range(4):
            rng = np.random.default_rng(10 * number + row)
            image = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
            mask = rng.integers(0, classes, size, dtype=np.uint8)
            mask[0, :2] = 255
            for kind, pixels in (("images", image), ("masks", mask)):
                file = root / form.format(part=part, kind=kind) / f"f{row}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)
            written[part, row] = image, mask
    return written


class TestDense:
    def test_pairs(self, tmp_path):
        written = write_pairs(tmp_path)
        train, validation, test = dense_pairs(tmp_path)
        image, mask = written["val", 2]
        assert torch.equal(validation.images[2], torch.from_numpy(image).permute(2, 0, 1))
        labels = torch.from_numpy(mask).long()
        assert torch.equal(validation.labels[2], torch.where(labels == 255, -100, labels))
        assert train.class_names == ("0", "1", "2")
        assert train.is_dense
        assert data.load(f"dense:{tmp_path}").test.images.shape == test.images.shape

    def test_class_names_and_void_among_them(self, tmp_path):
        write_pairs(tmp_path, ("train", "val"))
        (tmp_path / "classes.txt").write_text("road\nvoid\ncar\n")
        train, _ = dense_pairs(tmp_path)
        assert train.class_names == ("road", "car")
        assert set(train.labels.unique().tolist()) == {-100, 0, 1}
        raw = np.asarray(Image.open(tmp_path / "train/masks/f0.png"))
        assert torch.equal(train.labels[0] == 1, torch.from_numpy(raw == 2))
        (tmp_path / "classes.txt").write_text("road\ncar\n")
        with pytest.raises(InputError, match=r"f0\.png holds 2, which no class has"):
            dense_pairs(tmp_path)

    def test_camvid(self, tmp_path):
        for part in ("train", "val", "test"):
            write_pairs(tmp_path / "a", (part,), classes=12)
            for kind, name in (("images", part), ("masks", f"{part}annot")):
                (tmp_path / "a" / part / kind).rename(tmp_path / name)
        train, validation, test = dense_pairs(tmp_path)
        assert train.class_names == CAMVID[:-1]
        assert len(train.class_names) == 11
        assert int(train.labels.max()) == 10
        raw = np.asarray(Image.open(tmp_path / "trainannot/f1.png"))
        assert torch.equal(train.labels[1] == -100, torch.from_numpy((raw == 11) | (raw == 255)))
        assert len(validation) == len(test) == 4

    def test_real_camvid(self, data_folder, tmp_path):
        """The real frames, written as files, come back as they are."""
        with np.load(data_folder / "camvid.npz") as pack:
            for part in ("train", "val", "test"):
                for kind, name in (("image", part), ("mask", f"{part}annot")):
                    blob, offset = pack[f"{part}_{kind}"], pack[f"{part}_{kind}_offset"]
                    suffix = "jpg" if kind == "image" else "png"
                    (tmp_path / name).mkdir()
                    for row in range(3):
                        content = blob[offset[row] : offset[row + 1]].tobytes()
                        (tmp_path / name / f"{row}.{suffix}").write_bytes(content)
        splits = data.load(f"dense:{tmp_path}")
        assert splits.train.images.shape == (3, 3, 180, 240)
        raw = np.asarray(Image.open(tmp_path / "valannot/2.png"))
        result = splits.validation.labels[2].numpy()
        assert ((raw == 11) == (result == -100)).all()
        assert (raw[raw < 11] == result[raw < 11]).all()

    @pytest.mark.parametrize("home", [".", "VOCdevkit/VOC2012"])
    def test_pascal_voc(self, home, tmp_path):
        """Masks are palettes, whose colours are not read, with 255 about the objects."""
        root = tmp_path / home
        for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
            (root / folder).mkdir(parents=True)
        masks = {}
        for row, sides in enumerate([(10, 14), (12, 8), (9, 9), (20, 30)]):
            rng = np.random.default_rng(row)
            pixels = rng.integers(0, 256, (*sides, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"JPEGImages/{row}.jpg")
            mask = rng.integers(0, 21, sides, dtype=np.uint8)
            mask[:2] = 255
            picture = Image.frombytes("P", mask.shape[::-1], mask.tobytes())
            picture.putpalette([value for k in range(256) for value in (k, 255 - k, k // 2)])
            picture.save(root / f"SegmentationClass/{row}.png")
            masks[row] = mask
        (root / "ImageSets/Segmentation/train.txt").write_text("2\n0\n")
        (root / "ImageSets/Segmentation/val.txt").write_text("1\n3\n")
        train, test = dense_pairs(tmp_path, size=16)
        assert train.class_names == VOC
        assert len(VOC) == 21
        assert train.images.shape == (2, 3, 16, 16)
        # 9x9 fits as it is, in the middle; around it is black and has no label.
        labels = train.labels[0, 3:12, 3:12].numpy()
        assert (np.where(masks[2] == 255, -100, masks[2].astype(int)) == labels).all()
        around = torch.ones(16, 16, dtype=torch.bool)
        around[3:12, 3:12] = False
        assert (train.labels[0][around] == -100).all()
        assert not train.images[0][:, around].any()
        assert set(test.labels.unique().tolist()) <= {-100, *range(21)}
        with pytest.raises(InputError, match="give a size"):
            dense_pairs(tmp_path)
        (root / "ImageSets/Segmentation/val.txt").write_text("7\n")
        with pytest.raises(InputError, match=r"lists missing files: .*7\.jpg, .*7\.png"):
            dense_pairs(tmp_path, size=16)

    @pytest.mark.parametrize("fit", ["pad", "crop", "resize"])
    def test_images_and_masks_stay_together(self, fit, tmp_path):
        """Big squares of one colour and label: after any change of size they still agree."""
        for part in ("train", "test"):
            for row, (height, width) in enumerate([(40, 60), (90, 30), (24, 24)]):
                mask = np.zeros((height, width), np.uint8)
                mask[: height // 2, : width // 2] = 1
                mask[height // 2 :, width // 2 :] = 2
                image = np.repeat(mask[..., None] * 100, 3, 2).astype(np.uint8)
                for kind, pixels in (("images", image), ("masks", mask)):
                    (tmp_path / part / kind).mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(tmp_path / part / kind / f"{row}.png")
        train = dense_pairs(tmp_path, size=(20, 32), fit=fit)[0]
        assert train.labels.shape == (3, 20, 32)
        counted = train.labels != -100
        assert bool(counted.all()) == (fit != "pad")
        shown = (train.images[:, 0].float() / 100).round().long()
        agree = (shown == train.labels)[counted].double().mean()
        assert float(agree) > 0.93  # all but the edges, where colours are mixed
        # Two of the four quarters have class 0, whatever was done.
        assert float((train.labels[counted] == 0).double().mean()) == pytest.approx(0.5, abs=0.05)

    def test_bad_pairs(self, tmp_path):
        with pytest.raises(InputError, match=r"trainannot.*found nothing"):
            dense_pairs(tmp_path)
        with pytest.raises(InputError, match="pad, crop, resize, found 'squeeze'"):
            dense_pairs(tmp_path, fit="squeeze")
        write_pairs(tmp_path)
        with pytest.raises(InputError, match=r"12 images of 99x99 need"):
            dense_pairs(tmp_path, size=99, limit=12 * 99 * 99 * 11 - 1)
        assert dense_pairs(tmp_path, size=99, limit=12 * 99 * 99 * 11)
        with pytest.raises(InputError, match="one label a pixel"):
            data.load(f"dense:{tmp_path}", long_tail=0.1)
        Image.fromarray(np.zeros((6, 9), np.uint8)).save(tmp_path / "train/masks/f1.png")
        Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(tmp_path / "train/masks/f2.png")
        with pytest.raises(InputError, match=r"2 of 4 files.*9x6, its image 8x6.*RGB: masks"):
            dense_pairs(tmp_path)
        (tmp_path / "train/masks/f3.png").unlink()
        with pytest.raises(InputError, match=r"1 images without a mask.*f3\.png"):
            dense_pairs(tmp_path)


class TestOutOfDistribution:
    def test_takes_the_form_of_the_first(self, tmp_path):
        write_classes(tmp_path, each=10)
        pair = data.ood("digits", f"folder:{tmp_path}")
        assert pair.inside.mean == data.load("digits").mean
        assert pair.outside.images.shape == (20, 1, 8, 8)
        colour = image_folder(tmp_path)[2].images.double()
        by_hand = 0.299 * colour[:, 0] + 0.587 * colour[:, 1] + 0.114 * colour[:, 2]
        assert (pair.outside.images[:, 0].double() - by_hand).abs().max() < 0.51
        other = data.ood(f"folder:{tmp_path}", "digits", size=12)
        assert other.outside.images.shape[1:] == (3, 12, 12)
        assert torch.equal(other.outside.images[:, 0], other.outside.images[:, 2])
        assert other.outside.class_names == tuple("0123456789")

    def test_sizes_and_channels(self):
        flat = torch.full((3, 1, 9, 7), 77, dtype=torch.uint8)
        assert (resize(flat, 32, 5) == 77).all()
        assert convert_channels(flat, 3).shape == (3, 3, 9, 7)
        with pytest.raises(InputError, match="from 4 channels to 3"):
            convert_channels(flat.expand(-1, 4, -1, -1), 3)

    def test_refused(self, tmp_path):
        with pytest.raises(InputError, match="'digits' twice"):
            data.ood("digits", "digits")
        write_pairs(tmp_path)
        with pytest.raises(InputError, match="one label an image"):
            data.ood("digits", f"dense:{tmp_path}")


def test_hidden_folders_are_not_classes(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "train" / ".cache").mkdir()
    assert find_parts(tmp_path)[0] == ("cat", "dog")
