"""Splits, long tails, batches and augmentation on the device."""

from __future__ import annotations

import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.data.augment import (
    Augment,
    Normalise,
    cut_out,
    cutmix,
    draw_beta,
    mixup,
    random_crop,
    random_flip,
)
from calibrant.data.batches import DeviceBatches, derive_seed
from calibrant.data.images import Images, moments
from calibrant.data.splits import long_tail_counts, long_tail_rows, stratified_split

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


def seeded(device="cpu", seed=0):
    return torch.Generator(device).manual_seed(seed)


def pictures(count=20, size=6, channels=3, classes=4):
    images = torch.randint(1, 256, (count, channels, size, size), generator=seeded()).byte()
    labels = torch.arange(count) % classes
    return Images(images, labels, tuple("abcd"[:classes]))


class TestSplits:
    @pytest.mark.parametrize("held_out", [0.1, 0.25, 7, 0, 33])
    def test_counts_are_exact_and_by_class(self, held_out):
        labels = torch.arange(100) % 7
        kept, out = stratified_split(labels, held_out, seed=3)
        count = held_out if held_out >= 1 or held_out == 0 else round(100 * held_out)
        assert len(out) == count
        assert sorted(torch.cat((kept, out)).tolist()) == list(range(100))
        by_class = torch.bincount(labels[out], minlength=7)
        ideal = torch.bincount(labels).double() * count / 100
        assert ((by_class - ideal).abs() < 1).all()

    def test_seed_decides(self):
        labels = torch.arange(100) % 5
        first, same = (
            stratified_split(labels, 10, seed=1)[1],
            stratified_split(labels, 10, seed=1)[1],
        )
        assert torch.equal(first, same)
        assert not torch.equal(first, stratified_split(labels, 10, seed=2)[1])

    def test_cifar_sizes(self):
        kept, out = stratified_split(torch.arange(50_000) % 10, 0.1)
        assert (len(kept), len(out)) == (45_000, 5_000)
        assert (torch.bincount(out % 10) == 500).all()

    @pytest.mark.parametrize("held_out", [100, 101, -1, 1.0])
    def test_impossible_shares(self, held_out):
        if held_out == 1.0:
            assert len(stratified_split(torch.zeros(100).long(), held_out)[1]) == 1
            return
        with pytest.raises(InputError, match="of 100 rows"):
            stratified_split(torch.zeros(100).long(), held_out)

    def test_long_tail_counts_of_the_paper(self):
        counts = long_tail_counts(5000, 10, 0.1)
        assert counts[0] == 5000
        assert counts[-1] == 500
        assert counts[3] == int(5000 * 0.1 ** (3 / 9))
        assert sum(counts) == 20_431
        assert sum(long_tail_counts(500, 100, 0.1)) == 19_573

    def test_long_tail_rows(self):
        labels = torch.arange(1000) % 10
        rows = long_tail_rows(labels, 10, ratio=0.1, seed=1)
        assert torch.bincount(labels[rows]).tolist() == long_tail_counts(100, 10, 0.1)
        assert len(rows.unique()) == len(rows)
        with pytest.raises(InputError, match="class 1 has 2 rows"):
            long_tail_rows(torch.tensor([0] * 9 + [1] * 2), 2, ratio=0.9)
        with pytest.raises(InputError, match="ratio"):
            long_tail_counts(10, 3, 0.0)


@pytest.mark.parametrize("device", DEVICES)
class TestAugmentation:
    def test_crop_moves_each_image_whole(self, device):
        images = pictures(60).images.to(device)
        result = random_crop(images, 2, seeded(device))
        assert result.shape == images.shape
        assert result.dtype == torch.uint8
        padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
        places = set()
        for row in range(60):
            fits = [
                (dy, dx)
                for dy in range(5)
                for dx in range(5)
                if torch.equal(padded[row, :, dy : dy + 6, dx : dx + 6], result[row])
            ]
            assert fits
            places.add(fits[0])
        assert len(places) > 15  # of 25

    def test_flip_mirrors_half(self, device):
        images = pictures(400).images.to(device)
        result = random_flip(images, seeded(device))
        same = (result == images).flatten(1).all(1)
        mirrored = (result == images.flip(3)).flatten(1).all(1)
        assert (same | mirrored).all()
        assert 150 < int(mirrored.sum()) < 250

    def test_cut_out_blackens_a_square(self, device):
        images = pictures(200).images.to(device)
        result = cut_out(images, 3, seeded(device))
        black = (result == 0).all(1)
        assert torch.equal(torch.where(black.unsqueeze(1), images, result), images)
        sizes = black.flatten(1).sum(1)
        assert int(sizes.max()) == 9
        assert int(sizes.min()) >= 4  # cut off at a corner

    def test_normalise(self, device):
        images = pictures().images.to(device)
        mean, std = moments(images)
        wanted = images.double().cpu() / 255
        assert torch.allclose(torch.tensor(mean).double(), wanted.mean((0, 2, 3)), rtol=1e-6)
        by_hand = wanted.permute(1, 0, 2, 3).flatten(1).std(1, correction=0)
        assert torch.allclose(torch.tensor(std).double(), by_hand, rtol=1e-6)
        result = Normalise(mean, std, device, channels_last=True)(images)
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert result.mean((0, 2, 3)).abs().max() < 1e-5
        assert (result.var((0, 2, 3), correction=0) - 1).abs().max() < 1e-5

    def test_mixup_mixes_images_and_labels_alike(self, device):
        labels = torch.arange(8, device=device) % 4
        inputs = torch.nn.functional.one_hot(labels, 4).float().reshape(8, 4, 1, 1)
        images, soft = mixup(inputs, labels, 4, alpha=1.0, generator=seeded(device))
        assert torch.allclose(images.flatten(1), soft, atol=1e-6)
        assert torch.allclose(soft.sum(1), torch.ones(8, device=device))
        assert ((soft > 0) & (soft < 1)).any()

    def test_cutmix_labels_are_areas(self, device):
        labels = torch.arange(8, device=device) % 4
        maps = torch.nn.functional.one_hot(labels, 4).float()
        inputs = maps[:, :, None, None].expand(-1, -1, 10, 10).contiguous()
        for seed in range(20):
            images, soft = cutmix(inputs, labels, 4, alpha=1.0, generator=seeded(device, seed))
            assert torch.allclose(images.mean((2, 3)), soft, atol=1e-5)

    def test_beta_draws_have_their_moments(self, device):
        for alpha in (0.2, 1.0, 5.0):
            draws = draw_beta(alpha, 40_000, seeded(device), device)
            assert float(draws.mean()) == pytest.approx(0.5, abs=0.01)
            assert float(draws.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)

    def test_dense_labels_move_with_their_pixels(self, device):
        images = pictures(30).images.to(device)
        labels = (images[:, 0].long() % 4).clone()
        labels[:, 2, 3] = -100
        changed, moved = Augment(crop=2, cutout=2).dense(images, labels, -100, seeded(device))
        counted = moved != -100
        assert torch.equal(moved[counted], changed[:, 0].long()[counted] % 4)
        assert (moved[(changed == 0).all(1)] == -100).all()
        assert (~counted).sum() > 30  # the void pixels, and those from nowhere


class TestBatches:
    def make(self, **how):
        images = pictures(23)
        how = {"batch_size": 5, "normalise": Normalise(*moments(images.images)), **how}
        return images, DeviceBatches(images, **how)

    def test_every_row_once(self):
        images, batches = self.make(shuffle=True)
        result = list(batches)
        assert len(result) == len(batches) == 5
        index = torch.cat([batch.index for batch in result])
        assert sorted(index.tolist()) == list(range(23))
        assert index.tolist() != list(range(23))
        assert torch.equal(torch.cat([batch.target for batch in result]), images.labels[index])
        assert len(list(self.make(drop_last=True)[1])) == 4
        assert len(list(self.make(drop_last=True, batch_size=50)[1])) == 1

    def test_depend_on_seed_and_epoch_alone(self):
        def inputs(**how):
            how = {"shuffle": True, "augment": Augment(), **how}
            return torch.cat([batch.inputs for batch in self.make(**how)[1]])

        torch.manual_seed(1)
        first = inputs(seed=1, epoch=2)
        torch.rand(7)
        assert torch.equal(first, inputs(seed=1, epoch=2))
        assert not torch.equal(first, inputs(seed=1, epoch=3))
        assert not torch.equal(first, inputs(seed=2, epoch=2))

    def test_chosen_rows(self):
        rows = torch.tensor([3, 5, 8])
        _, batches = self.make(rows=rows, shuffle=True)
        assert sorted(torch.cat([batch.index for batch in batches]).tolist()) == [3, 5, 8]

    def test_processes_share_the_rows(self):
        parts = [
            torch.cat([batch.index for batch in self.make(shuffle=True, rank=r, world=3)[1]])
            for r in range(3)
        ]
        assert {len(part) for part in parts} == {8}
        assert set(torch.cat(parts).tolist()) == set(range(23))

    def test_bad_batch_size(self):
        with pytest.raises(InputError, match="found 0"):
            self.make(batch_size=0)

    def test_derive_seeds_differ(self):
        result = {derive_seed(a, b, c) for a in range(20) for b in range(20) for c in range(3)}
        assert len(result) == 1200
        assert all(0 <= seed < 2**63 for seed in result)


def test_images_refuse_what_they_are_not():
    good = pictures()
    with pytest.raises(InputError, match="float32"):
        Images(good.images.float(), good.labels, good.class_names)
    with pytest.raises(InputError, match=r"found \(19,\)"):
        Images(good.images, good.labels[1:], good.class_names)
    dense = Images(good.images, torch.zeros(20, 6, 6).long(), ("a", "b"))
    assert dense.is_dense
    assert len(dense.take(torch.tensor([1, 2]))) == 2
    assert good.num_classes == 4
