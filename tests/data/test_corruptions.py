"""CIFAR-C-style corruptions, against slow references written with other tools."""

from __future__ import annotations

import colorsys
import io
import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.data import corruptions
from calibrant.data.corruptions import KINDS, corrupt, weather
from calibrant.data.corruptions.blur import blur_along, glass_blur
from calibrant.data.corruptions.digital import elastic_transform, random_affine
from calibrant.data.corruptions.jpeg import jpeg
from calibrant.data.corruptions.weather import crystals, plasma

Image = pytest.importorskip("PIL.Image")
ndimage = pytest.importorskip("scipy.ndimage")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]
RANDOM = {"gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow"}
RANDOM |= {"frost", "fog", "elastic_transform"}
# The published constants make these no farther from the clean image from step to step: glass
# blurs less where it moves twice, motion's 6 to 8 pixels add nothing at one deviation, frost
# dims as it covers, elastic's affine part shrinks. Each has a test of its own below.
NOT_MONOTONE = {"glass_blur", "motion_blur", "frost", "elastic_transform"}


# Constants of the published program, said here again: a slip in ours must show.
DISK = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
MOTION = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
ELASTIC = (
    (0, 0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
)
FOG = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
FROST = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
# Mean, deviation, enlargement and threshold of the flakes, their way and its deviation.
SNOW = (
    (0.1, 0.2, 1, 0.6, 8, 3),
    (0.1, 0.2, 1, 0.5, 10, 4),
    (0.15, 0.3, 1.75, 0.55, 10, 4),
    (0.25, 0.3, 2.25, 0.6, 12, 6),
    (0.3, 0.3, 1.25, 0.65, 14, 12),
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@lru_cache(maxsize=8)
def photographs(height=32, width=32, count=24):
    """Pieces of a real photograph, made small."""
    from sklearn.datasets import load_sample_image

    whole = load_sample_image("china.jpg")
    rng, pieces = np.random.default_rng(0), []
    for _ in range(count):
        top, left = rng.integers(0, whole.shape[0] - 4 * height), rng.integers(0, 640 - 4 * width)
        piece = whole[top : top + 4 * height, left : left + 4 * width]
        pieces.append(np.asarray(Image.fromarray(piece).resize((width, height), Image.BOX)))
    return torch.from_numpy(np.stack(pieces).transpose(0, 3, 1, 2).copy())


def distance(image, other):
    return float((image.float() - other.float()).abs().mean())


class TestContract:
    @pytest.mark.sampled(count=50)
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 20, 37), (2, 4, 9), (3, 70, 66)])
    @pytest.mark.parametrize("kind", KINDS)
    def test_bytes_of_the_same_shape(self, kind, shape, device):
        images = torch.randint(256, (3, *shape), generator=seeded()).byte().to(device)
        before = images.clone()
        for severity in (1, 5):
            result = corrupt(images, kind, severity)
            assert result.dtype == torch.uint8
            assert result.shape == images.shape
            assert result.device == images.device
            assert result.is_contiguous()
            # Small images are enlarged by less than a pixel, which is not at all.
            assert not torch.equal(result, images) or (kind == "zoom_blur" and shape[1] < 20)
        assert torch.equal(images, before)

    @pytest.mark.parametrize("kind", KINDS)
    def test_seed_decides(self, kind):
        images = photographs()
        torch.manual_seed(5)
        first, state = corrupt(images, kind, 3, seed=1), torch.get_rng_state()
        torch.rand(3)
        assert torch.equal(first, corrupt(images, kind, 3, seed=1))
        assert torch.equal(first, corrupt(images, kind, 3, seed=2)) == (kind not in RANDOM)
        torch.manual_seed(5)
        assert torch.equal(torch.get_rng_state(), state)  # the common generator was left alone

    @pytest.mark.parametrize("kind", KINDS)
    def test_each_image_has_its_own_draw(self, kind):
        result = corrupt(photographs()[:1].expand(2, -1, -1, -1), kind, 5)
        assert torch.equal(result[0], result[1]) == (kind not in RANDOM)

    @pytest.mark.parametrize("kind", sorted(set(KINDS) - RANDOM))
    def test_chunks_change_nothing(self, kind, monkeypatch):
        whole = corrupt(photographs(), kind, 4)
        monkeypatch.setattr(corruptions, "CHUNK", 5 * 3 * 32 * 32)
        assert torch.equal(corrupt(photographs(), kind, 4), whole)

    @pytest.mark.parametrize("kind", sorted(RANDOM))
    def test_chunks_draw_anew(self, kind, monkeypatch):
        monkeypatch.setattr(corruptions, "CHUNK", 3 * 32 * 32)
        result = corrupt(photographs()[:1].expand(3, -1, -1, -1), kind, 5)
        assert not torch.equal(result[0], result[1])
        assert not torch.equal(result[1], result[2])

    @pytest.mark.parametrize("kind", sorted(set(KINDS) - NOT_MONOTONE))
    def test_severities_lead_away_from_the_clean_image(self, kind):
        images = photographs(count=100)
        away = [distance(corrupt(images, kind, severity), images) for severity in range(1, 6)]
        assert away == sorted(away)
        assert away[-1] > 1.3 * away[0]

    def test_settings_for_training_change_nothing(self, monkeypatch):
        plain, seen = corrupt(photographs(), "jpeg_compression", 5), []
        before = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert torch.equal(corrupt(photographs(), "jpeg_compression", 5), plain)

                def record(images, severity, generator):
                    seen.append(torch.get_float32_matmul_precision())
                    seen.append((images @ images.transpose(2, 3)).dtype)
                    raise ValueError("on purpose")

                monkeypatch.setitem(corruptions._FUNCTIONS, "fog", record)
                with pytest.raises(ValueError, match="on purpose"):
                    corrupt(photographs(), "fog", 1)
            assert seen == ["highest", torch.float32]
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision(before)

    def test_severities_draw_anew(self):
        images = torch.full((5, 3, 32, 32), 128, dtype=torch.uint8)
        weak, strong = (corrupt(images, "gaussian_noise", s).double().flatten() for s in (1, 2))
        assert abs(float(torch.corrcoef(torch.stack((weak, strong)))[0, 1])) < 0.05

    def test_fifteen_kinds(self):
        assert len(KINDS) == len(set(KINDS)) == 15

    def test_no_images(self):
        empty = torch.zeros(0, 3, 32, 32, dtype=torch.uint8)
        assert corrupt(empty, "jpeg_compression", 1).shape == empty.shape

    def test_bad_input(self):
        images = photographs()
        with pytest.raises(InputError, match="no corruption is called 'rain'"):
            corrupt(images, "rain", 1)
        for severity in (0, 6, 1.5, True):
            with pytest.raises(InputError, match="severity must be"):
                corrupt(images, "fog", severity)
        with pytest.raises(InputError, match="float32"):
            corrupt(images.float(), "fog", 1)
        with pytest.raises(InputError, match="found 3x9"):
            corrupt(torch.zeros(1, 3, 3, 9, dtype=torch.uint8), "fog", 1)


class TestNoise:
    @pytest.mark.parametrize(
        ("severity", "deviation"), list(enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1))
    )
    def test_gaussian_moments(self, severity, deviation):
        images = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
        noise = corrupt(images, "gaussian_noise", severity).double() - 128
        assert float(noise.std()) == pytest.approx(255 * deviation, rel=0.02)
        assert abs(float(noise.mean())) < 0.5
        assert float((noise.abs() < 255 * deviation).double().mean()) == pytest.approx(
            0.683, abs=0.02
        )

    @pytest.mark.parametrize(
        ("severity", "photons"), list(enumerate((500, 250, 100, 75, 50), start=1))
    )
    def test_shot_variance_is_the_light(self, severity, photons):
        for level in (40, 120):
            images = torch.full((20, 3, 32, 32), level, dtype=torch.uint8)
            result = corrupt(images, "shot_noise", severity).double()
            assert float(result.mean()) == pytest.approx(level, abs=0.7)
            expected = 255 * math.sqrt(level / 255 / photons)
            assert float(result.std()) == pytest.approx(expected, rel=0.03)

    @pytest.mark.parametrize(
        ("severity", "share"), list(enumerate((0.01, 0.02, 0.03, 0.05, 0.07), start=1))
    )
    def test_impulses_are_black_and_white_in_halves(self, severity, share):
        images = torch.full((40, 3, 32, 32), 77, dtype=torch.uint8)
        result = corrupt(images, "impulse_noise", severity)
        assert set(result.unique().tolist()) == {0, 77, 255}
        for level in (0, 255):
            assert float((result == level).double().mean()) == pytest.approx(share / 2, rel=0.1)


def slow_disk(radius, softness):
    """The kernel on a wide field, its Gaussian by scipy."""
    disk = np.zeros((17, 17))
    for row in range(-8, 9):
        for column in range(-8, 9):
            disk[row + 8, column + 8] = float(row * row + column * column <= radius * radius)
    side = [math.exp(-((k / softness) ** 2) / 2) for k in (-1, 0, 1)]
    side = [value / sum(side) for value in side]
    soft = ndimage.correlate(disk / disk.sum(), np.outer(side, side), mode="constant")
    assert soft.sum() == pytest.approx(1)
    return soft


class TestBlur:
    @pytest.mark.parametrize("severity", range(1, 6))
    def test_defocus_is_a_convolution(self, severity):
        images = photographs(24, 33, 4)
        kernel = slow_disk(*DISK[severity - 1])
        result = corrupt(images, "defocus_blur", severity).numpy()
        for image, blurred in zip(images.numpy(), result, strict=True):
            for plane, got in zip(image, blurred, strict=True):
                expected = ndimage.convolve(plane.astype(float), kernel, mode="mirror")
                assert np.abs(got - expected).max() < 0.51

    def test_glass_takes_neighbours(self):
        rows, columns = torch.meshgrid(torch.arange(32), torch.arange(40), indexing="ij")
        images = torch.stack((rows, columns, rows)).byte().expand(60, -1, -1, -1)
        for severity, times in ((1, 1), (4, 2)):
            result = corrupt(images, "glass_blur", severity).long()
            assert torch.equal(result[:, 0], result[:, 2])
            up, left = (rows - result[:, 0])[:, 4:-2, 4:-2], (columns - result[:, 1])[:, 4:-2, 4:-2]
            if severity == 1:
                assert set(up.unique().tolist()) == set(left.unique().tolist()) == {0, 1}
                pairs = torch.bincount((2 * up + left).flatten(), minlength=4).double()
                assert (pairs / pairs.sum() - 0.25).abs().max() < 0.01
                assert torch.equal(result[:, :, :2], images[:, :, :2].long())
                assert torch.equal(result[..., :2], images[..., :2].long())
            # A move is one place up with one half: the mean says how often they were made.
            assert float(up.double().mean()) == pytest.approx(times / 2, abs=0.05)

    def test_glass_as_the_published_program_moves(self):
        """In numpy, pixel after pixel, with the assignment that was meant to swap."""
        image = photographs()[0].permute(1, 2, 0).numpy().copy()
        draws = torch.randint(4, (1, 32, 32), generator=seeded(3))
        moved = image.copy()
        for h in range(31, 1, -1):
            for w in range(31, 1, -1):
                draw = int(draws[0, h, w])
                h_other, w_other = h - draw // 2, w - draw % 2
                moved[h, w], moved[h_other, w_other] = moved[h_other, w_other], moved[h, w]
        clean = torch.from_numpy(image.transpose(2, 0, 1).copy())[None].float() / 255
        result = (glass_blur(clean, 1, seeded(3)) * 255).round().byte()
        assert torch.equal(result[0].permute(1, 2, 0), torch.from_numpy(moved))

    @pytest.mark.parametrize("severity", range(1, 6))
    def test_glass_blurs_as_published(self, severity):
        sigma, times = GLASS[severity - 1]
        image = photographs()[:1].float() / 255
        generator, result = seeded(6), glass_blur(image, severity, seeded(6))[0].numpy()
        for plane, got in zip(image[0].numpy().astype(float), result, strict=True):
            generator.manual_seed(6)
            moved = ndimage.gaussian_filter(plane, sigma, mode="nearest", truncate=4)
            moved = np.round(moved * 255) / 255
            for _ in range(times):
                draws, before = torch.randint(4, (1, 32, 32), generator=generator)[0], moved.copy()
                for row in range(2, 32):
                    for column in range(2, 32):
                        up, left = divmod(int(draws[row, column]), 2)
                        moved[row, column] = before[row - up, column - left]
            expected = ndimage.gaussian_filter(moved, sigma, mode="nearest", truncate=4)
            assert np.abs(expected - got).max() < 0.005

    def test_glass_moves_twice_as_much_twice(self):
        images = photographs(count=100)
        away = [distance(corrupt(images, "glass_blur", s), images) for s in range(1, 6)]
        assert min(away[3:]) > 1.2 * max(away[:3])

    @pytest.mark.parametrize("severity", range(1, 6))
    def test_motion_by_hand(self, severity):
        images = photographs(16, 21, 5).float() / 255
        radius, sigma = MOTION[severity - 1]
        angles = torch.tensor([0.0, 0.7, -0.6, 2.3, -1.57])
        result = blur_along(images, angles, radius, sigma).numpy()
        weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
        for image, angle, blurred in zip(images.numpy(), angles.tolist(), result, strict=True):
            expected = np.zeros_like(image)
            for row in range(16):
                for column in range(21):
                    for i, weight in enumerate(weights):
                        y = min(max(row + math.ceil(i * math.sin(angle) - 0.5), 0), 15)
                        x = min(max(column + math.ceil(i * math.cos(angle) - 0.5), 0), 20)
                        expected[:, row, column] += weight / sum(weights) * image[:, y, x]
            assert np.abs(expected - blurred).max() < 1e-4

    def test_motion_is_near_level(self):
        """Level stripes suffer least: at most 45° from level, the way is longer than high."""
        stripes = torch.zeros(50, 1, 32, 32, dtype=torch.uint8)
        stripes[:, :, ::4] = 255
        upright = stripes.transpose(2, 3).contiguous()
        level = distance(corrupt(stripes, "motion_blur", 3), stripes)
        assert level < distance(corrupt(upright, "motion_blur", 3), upright)

    def test_motion_severities_never_lead_back(self):
        images = photographs(count=100)
        away = [distance(corrupt(images, "motion_blur", s), images) for s in range(1, 6)]
        assert all(after > 0.97 * before for before, after in pairwise(away))
        assert away[4] > 1.1 * away[2] > 1.1 * away[0]

    @pytest.mark.parametrize(
        ("severity", "last"), list(enumerate((1.06, 1.11, 1.15, 1.20, 1.25), start=1))
    )
    def test_zoom_by_scipy(self, severity, last):
        images = photographs(32, 32, 3)
        factors = np.arange(1, last + 0.005, 0.01)
        result = corrupt(images, "zoom_blur", severity).numpy()
        for image, blurred in zip(images.numpy(), result, strict=True):
            total = image.astype(float)
            for factor in factors:
                side = math.ceil(32 / factor)
                first = (32 - side) // 2
                piece = image[:, first : first + side, first : first + side].astype(float)
                large = ndimage.zoom(piece, (1, factor, factor), order=1)
                trim = (large.shape[1] - 32) // 2
                total += large[:, trim : trim + 32, trim : trim + 32]
            assert np.abs(total / (len(factors) + 1) - blurred).max() < 0.51


def slow_plasma(draw, count, decay, side=32):
    """Diamonds and squares, point after point; noise is ±w², drawn place by place."""
    heights = np.zeros((count, side, side))
    step, wobble = side, 100.0
    while step >= 2:
        half, cells = step // 2, side // step
        for places in ("middle", "above", "beside"):
            noise = (2 * draw((count, cells, cells)) - 1) * wobble**2
            changed = heights.copy()
            for i in range(cells):
                for j in range(cells):
                    y = i * step + (0 if places == "above" else half)
                    x = j * step + (0 if places == "beside" else half)
                    if places == "middle":
                        near = [(half, half), (half, -half), (-half, half), (-half, -half)]
                    else:
                        near = [(half, 0), (-half, 0), (0, half), (0, -half)]
                    total = sum(heights[:, (y + a) % side, (x + b) % side] for a, b in near)
                    changed[:, y, x] = total / 4 + noise[:, i, j]
            heights = changed
        step, wobble = half, wobble / decay
    heights -= heights.min((1, 2), keepdims=True)
    return heights / heights.max((1, 2), keepdims=True)


class TestWeather:
    def test_snow_on_black(self):
        black = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
        for severity, kept in enumerate((0.95, 0.9, 0.9, 0.85, 0.8), start=1):
            result = corrupt(black, "snow", severity)
            assert int(result.min()) == round(255 * (1 - kept) * 0.5)  # the paled ground
            assert torch.equal(result, result.flip(2, 3))  # the flakes and the same turned round
            assert torch.equal(result[:, 0], result[:, 1])  # white
            assert int(result.max()) > 60

    @pytest.mark.parametrize("severity", range(1, 6))
    def test_as_much_snow_as_published(self, severity):
        mean, deviation, enlarged, threshold, way, spread = SNOW[severity - 1]
        weights = np.exp(-((np.arange(2 * way + 1) / spread) ** 2) / 2)
        rng, side = np.random.default_rng(0), math.ceil(32 / enlarged)
        first, place = (32 - side) // 2, np.arange(32)
        amount, spots = [], []
        for _ in range(400):
            layer = rng.normal(mean, deviation, (32, 32))
            piece = layer[first : first + side, first : first + side]
            large = ndimage.zoom(piece, enlarged, order=1)
            trim = (large.shape[0] - 32) // 2
            layer = large[trim : trim + 32, trim : trim + 32]
            layer = np.where(layer < threshold, 0, layer).clip(0, 1)
            angle, fallen = math.radians(rng.uniform(-135, -45)), np.zeros((32, 32))
            for step, weight in enumerate(weights / weights.sum()):
                rows = (place + math.ceil(step * math.sin(angle) - 0.5)).clip(0, 31)
                columns = (place + math.ceil(step * math.cos(angle) - 0.5)).clip(0, 31)
                fallen += weight * layer[rows][:, columns]
            flakes = fallen + fallen[::-1, ::-1]
            amount.append(flakes.mean())
            spots.append(flakes.std())
        result = corrupt(torch.zeros(400, 1, 32, 32, dtype=torch.uint8), "snow", severity).double()
        result = (result - result.min()) / 255
        assert float(result.mean()) == pytest.approx(np.mean(amount), rel=0.08)
        assert float(result.std((1, 2, 3)).mean()) == pytest.approx(np.mean(spots), rel=0.08)

    def test_snow_falls(self):
        black = torch.zeros(100, 1, 32, 32, dtype=torch.uint8)
        result = corrupt(black, "snow", 4).float()
        along_fall = (result[:, :, 1:] - result[:, :, :-1]).abs().mean()
        across = (result[..., 1:] - result[..., :-1]).abs().mean()
        assert along_fall < 0.8 * across

    @pytest.mark.parametrize(("decay", "size"), [(3.0, 32), (1.75, 20)])
    def test_plasma_by_hand(self, decay, size):
        result = plasma(2, size, decay, seeded(4))
        assert result.shape == (2, 32, 32)
        generator = seeded(4)
        heights = slow_plasma(
            lambda shape: torch.rand(shape, generator=generator).numpy(), 2, decay
        )
        assert np.abs(result.numpy() - heights).max() < 1e-4

    def test_fog_fades_as_published(self, monkeypatch):
        seen = []

        def record(count, size, decay, generator):
            seen.append(decay)
            return plasma(count, size, decay, generator)

        monkeypatch.setattr(weather, "plasma", record)
        for severity in range(1, 6):
            corrupt(photographs(), "fog", severity)
        assert seen == [decay for _, decay in FOG]

    def test_fog_of_plain_images(self):
        black = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
        assert not corrupt(black, "fog", 3).any()
        for severity, (thick, _) in enumerate(FOG, start=1):
            result = corrupt(black + 255, "fog", severity)
            assert int(result.min()) == round(255 / (1 + thick))
            assert int(result.max()) == 255

    def test_frost_covers_more_and_more(self):
        """What a picture still explains of its frosted self falls from step to step."""
        images = photographs(count=100)
        kept = []
        for severity in range(1, 6):
            result = corrupt(images, "frost", severity).double()
            pairs = zip(images.double().flatten(1), result.flatten(1), strict=True)
            kept.append(np.mean([float(torch.corrcoef(torch.stack(p))[0, 1]) for p in pairs]))
        assert kept == sorted(kept, reverse=True)
        assert kept[0] > 0.85
        assert kept[-1] < kept[0] - 0.1

    def test_frost_is_added_as_published(self):
        black = torch.zeros(100, 3, 32, 32, dtype=torch.uint8)
        amounts = []
        for severity, (picture, _) in enumerate(FROST, start=1):
            on_black, on_grey = (corrupt(black + level, "frost", severity) for level in (0, 100))
            assert ((on_grey.double() - on_black) - 100 * picture).abs().max() <= 1
            amounts.append(float(on_black.double().mean()))
        for amount, (_, ice) in zip(amounts, FROST, strict=True):
            assert amount / amounts[0] == pytest.approx(ice / 0.2, rel=0.03)

    def test_frost_is_ice(self):
        texture = crystals(50, 32, 32, seeded())
        assert 0 <= float(texture.min()) < float(texture.max()) <= 1
        assert 0.4 < float(texture.mean()) < 0.7
        assert float(texture.std()) > 0.12
        black = torch.zeros(20, 3, 32, 32, dtype=torch.uint8)
        red, _, blue = corrupt(black, "frost", 5).double().mean((0, 2, 3)).tolist()
        assert red < blue < 255 * 0.45


class TestDigital:
    @pytest.mark.parametrize("severity", range(1, 6))
    def test_brightness_by_colorsys(self, severity):
        more = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
        images = photographs(12, 9, 6).clone()
        images[0, :, :3] = 0  # black has no hue
        result = corrupt(images, "brightness", severity)
        for image, got in zip(images, result, strict=True):
            for row in range(12):
                for column in range(9):
                    colour = [value / 255 for value in image[:, row, column].tolist()]
                    hue, saturation, value = colorsys.rgb_to_hsv(*colour)
                    expected = colorsys.hsv_to_rgb(hue, saturation, min(1.0, value + more))
                    for actual, other in zip(got[:, row, column].tolist(), expected, strict=True):
                        assert abs(actual - 255 * other) < 0.51

    def test_brightness_of_grey(self):
        ramp = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
        result = corrupt(ramp, "brightness", 5)
        assert (result.double() - (ramp.double() + 76.5).clamp(max=255)).abs().max() < 0.51

    def test_other_planes_are_each_grey(self):
        """Two channels are no colours: each is brightened as if alone, and so is each of four."""
        for channels in (2, 4):
            planes = torch.randint(256, (3, channels, 16, 16), generator=seeded()).byte()
            for kind in ("brightness", "jpeg_compression"):
                together = corrupt(planes, kind, 3)
                for channel in range(channels):
                    alone = corrupt(planes[:, channel : channel + 1], kind, 3)
                    assert torch.equal(together[:, channel : channel + 1], alone)

    @pytest.mark.parametrize("severity", range(1, 6))
    def test_contrast_by_hand(self, severity):
        share = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
        images = photographs(12, 9, 4)
        result = corrupt(images, "contrast", severity)
        for image, got in zip(images.tolist(), result.tolist(), strict=True):
            for plane, paled in zip(image, got, strict=True):
                mean = sum(map(sum, plane)) / (12 * 9)
                for row, pale in zip(plane, paled, strict=True):
                    for value, expected in zip(row, pale, strict=True):
                        assert abs(expected - (mean + share * (value - mean))) < 0.51

    @pytest.mark.parametrize("size", [(32, 32), (31, 50), (64, 64)])
    @pytest.mark.parametrize("severity", range(1, 6))
    def test_pixelate_is_pillows(self, severity, size):
        share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
        height, width = size
        images = photographs(height, width, 3)
        result = corrupt(images, "pixelate", severity).permute(0, 2, 3, 1).numpy()
        for image, got in zip(images.permute(0, 2, 3, 1).numpy(), result, strict=True):
            small = Image.fromarray(image).resize(
                (int(width * share), int(height * share)), Image.BOX
            )
            large = np.asarray(small.resize((width, height), Image.BOX))
            assert np.abs(got.astype(int) - large).max() <= 1

    @pytest.mark.parametrize("size", [(32, 32), (24, 41)])
    @pytest.mark.parametrize("severity", range(1, 6))
    def test_elastic_by_scipy(self, severity, size):
        height, width = size
        images = photographs(height, width, 3)
        short = min(size)
        far, deviation, corner = (short * share for share in ELASTIC[severity - 1])
        result = elastic_transform(images.float() / 255, severity, seeded(8)).numpy() * 255
        generator = seeded(8)
        shifts = (2 * torch.rand(3, 3, 2, generator=generator).double() - 1) * corner
        noise = (
            2 * torch.rand(3, 2, *size, generator=generator).double().numpy() - 1 if far else None
        )
        rows, columns = np.mgrid[:height, :width].astype(float)
        for number, image in enumerate(images.numpy().astype(float)):
            third, x, y = short // 3, width // 2, height // 2
            before = [(x + third, y + third), (x + third, y - third), (x - third, y - third)]
            matrix = np.zeros((6, 6))
            for place, (px, py) in enumerate(before):
                matrix[2 * place] = [px, py, 1, 0, 0, 0]
                matrix[2 * place + 1] = [0, 0, 0, px, py, 1]
            after = np.array(before) + shifts[number].numpy()
            forward = np.linalg.solve(matrix, after.flatten())
            whole = np.vstack((forward.reshape(2, 3), [0, 0, 1]))
            back = np.linalg.inv(whole)
            at_x = back[0, 0] * columns + back[0, 1] * rows + back[0, 2]
            at_y = back[1, 0] * columns + back[1, 1] * rows + back[1, 2]
            for plane, got in zip(image, result[number], strict=True):
                warped = ndimage.map_coordinates(plane, [at_y, at_x], order=1, mode="mirror")
                if noise is not None:
                    dx, dy = (
                        far * ndimage.gaussian_filter(field, deviation, mode="reflect", truncate=3)
                        for field in noise[number]
                    )
                    places = [rows + dy, columns + dx]
                    warped = ndimage.map_coordinates(warped, places, order=1, mode="reflect")
                assert np.abs(warped - got).max() < 0.05

    def test_elastic_bends_more_and_more(self):
        """Away from the best affine map: the published affine part itself shrinks."""
        rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
        ramps = torch.stack((rows, columns)).expand(60, -1, -1, -1) / 32
        inside = slice(6, 26)
        plane = torch.stack((rows, columns, torch.ones(32, 32)), -1)[inside, inside].reshape(-1, 3)
        bent = []
        for severity in range(1, 6):
            result = elastic_transform(ramps, severity, seeded(1))[..., inside, inside].flatten(2)
            fitted = torch.linalg.lstsq(plane, result.flatten(0, 1).T).solution
            bent.append(float((plane @ fitted - result.flatten(0, 1).T).pow(2).mean().sqrt()))
        assert bent[0] < 1e-4
        assert bent == sorted(bent)

    def test_affine_moves_its_points_so_far_and_no_farther(self):
        rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
        ramps = torch.stack((columns, rows)).expand(200, -1, -1, -1)
        moves = (random_affine(ramps, 3.0, seeded(2)) - ramps)[..., 32, 32].abs()
        assert float(moves.max()) < 3.2
        assert float(moves.mean()) > 0.5


class TestJpeg:
    @staticmethod
    def by_pillow(image, quality):
        held = io.BytesIO()
        Image.fromarray(image).save(held, "JPEG", quality=quality)
        return np.asarray(Image.open(held)).astype(int)

    @pytest.mark.parametrize("size", [(32, 32), (16, 48), (31, 45), (8, 8), (17, 33), (64, 64)])
    @pytest.mark.parametrize("severity", range(1, 6))
    def test_colours_as_pillow_has_them(self, severity, size):
        quality = (80, 65, 58, 50, 40)[severity - 1]
        images = photographs(*size, 40)
        result = corrupt(images, "jpeg_compression", severity).permute(0, 2, 3, 1).numpy()
        self.compare(images.permute(0, 2, 3, 1).numpy(), result, quality)

    @pytest.mark.parametrize("quality", [10, 40, 75, 95])
    def test_grey_as_pillow_has_it(self, quality):
        images = photographs(31, 45, 40)[:, :1]
        result = jpeg(images.float(), quality).numpy()[:, 0]
        self.compare(images[:, 0].numpy(), result, quality)

    def compare(self, images, result, quality):
        theirs = np.stack([self.by_pillow(image, quality) for image in images])
        away = np.abs(result.astype(int) - theirs)
        # libjpeg's whole numbers round a cosine to the other side now and then, not more.
        assert away.mean() < 0.12 * np.abs(images.astype(int) - theirs).mean()
        assert (away <= 1).mean() > 0.94

    def test_one_colour_stays(self):
        flat = torch.full((1, 3, 16, 16), 90, dtype=torch.uint8)
        assert (corrupt(flat, "jpeg_compression", 5).int() - 90).abs().max() <= 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", sorted(set(KINDS) - RANDOM))
def test_devices_agree_where_nothing_is_drawn(kind, device):
    images = photographs()
    away = corrupt(images.to(device), kind, 4).cpu().int() - corrupt(images, kind, 4).int()
    assert float((away.abs() > 1).float().mean()) < 1e-3
