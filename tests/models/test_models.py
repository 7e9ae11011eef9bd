"""The networks of the papers, by their published sizes; and any classifier taken apart."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import pytest
import torch
from torch import nn

from calibrant import models
from calibrant.core.errors import InputError
from calibrant.models.network import StochasticDepth
from calibrant.models.resnet import Padded


def size(network):
    return sum(parameter.numel() for parameter in network.parameters())


# Published for ImageNet: 1,000 classes, a 7x7 stem and (DenseNets) a BatchNorm after it.
IMAGENET = {
    "resnet18": (11_689_512, 512, 64, 0),
    "resnet34": (21_797_672, 512, 64, 0),
    "resnet50": (25_557_032, 2048, 64, 0),
    "resnet101": (44_549_160, 2048, 64, 0),
    "resnet152": (60_192_808, 2048, 64, 0),
    "densenet121": (7_978_856, 1024, 64, 2 * 64),
    "densenet161": (28_681_000, 2208, 96, 2 * 96),
}


@pytest.mark.sampled(count=3)
@pytest.mark.parametrize("name", IMAGENET)
def test_sizes_follow_from_the_published_imagenet_ones(name):
    published, width, stem, norm = IMAGENET[name]
    stems = 3 * stem * (7 * 7 - 3 * 3)
    wanted = published - stems - norm - (width + 1) * 1000 + (width + 1) * 10
    assert size(models.build(name, 10)) == wanted


@pytest.mark.parametrize(
    ("name", "classes", "wanted"),
    [
        ("resnet110", 10, 1.7e6),  # He et al. 2016a, table 6
        ("preresnet56", 10, 0.85e6),  # 56 layers: table 6 of the same
        ("wrn_16_4", 10, 2.7e6),  # Zagoruyko and Komodakis 2016, table 4 (2.7M and 36.5M)
        ("wrn_28_10", 10, 36.5e6),
        ("wrn_32_10", 10, 46.2e6),  # 5 blocks a stage: WRN-34-10 by their count
        ("densenet40", 10, 1.0e6),  # Huang et al. 2017, table 2
    ],
)
def test_sizes_as_rounded_in_the_papers(name, classes, wanted):
    assert size(models.build(name, classes)) == pytest.approx(wanted, rel=0.03)


def test_sizes_counted_by_hand():
    # 6·(25·3+1) + 16·(25·6+1) + 120·401 + 84·121 + 10·85
    assert size(models.build("lenet5", 10)) == 456 + 2416 + 48_120 + 10_164 + 850
    assert size(models.build("mlp", 10)) == 128 * 65 + 128 * 129 + 10 * 129
    # torchvision's 42,004,074 with its auxiliary head of 1024·256·9 + 2·256 + 257·21.
    auxiliary = 1024 * 256 * 9 + 2 * 256 + 257 * 21
    assert size(models.build("deeplabv3_resnet50", 21)) == 42_004_074 - auxiliary


def test_two_names_of_one_network():
    first, other = models.build("wrn_28_10", 10), models.build("wrn_26_10", 10)
    assert [p.shape for p in first.parameters()] == [p.shape for p in other.parameters()]


SMALL = ["resnet18", "resnet110_sd", "preresnet56", "wrn_16_4", "densenet40", "lenet5"]


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_the_classifier_of_features(name):
    network = models.build(name, 7, channels=1).eval()
    images = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        logits, features = network(images), network.features(images)
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()
    assert torch.equal(network.classifier(features), logits)


@pytest.mark.parametrize("name", ["resnet18", "wrn_16_4", "densenet40"])
def test_every_parameter_learns(name):
    network = models.build(name, 3)
    network(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_dense_logits_have_the_size_of_the_image():
    network = models.build("deeplabv3_resnet50", 5).eval()
    images = torch.randn(1, 3, 45, 61)
    with torch.no_grad():
        assert network(images).shape == (1, 5, 45, 61)
        assert network.features(images).shape == (1, 256, 6, 8)  # an eighth of the size


class TestStochasticDepth:
    def test_keeps_its_share_and_scales_in_use(self):
        layer, ones = StochasticDepth(0.25), torch.ones(3)
        torch.manual_seed(0)
        draws = torch.stack([layer(ones) for _ in range(4000)])
        assert set(draws.unique().tolist()) == {0.0, 1.0}
        assert (draws[:, 0] == draws[:, 1]).all()  # one draw a batch
        assert draws.mean().item() == pytest.approx(0.25, abs=0.03)
        assert torch.equal(layer.eval()(ones), 0.25 * ones)

    def test_falls_linearly_to_the_last(self):
        blocks = [m for m in models.build("resnet110_sd", 10).modules() if hasattr(m, "depth")]
        keeps = [block.depth.keep for block in blocks]
        assert len(keeps) == 54
        assert keeps[-1] == pytest.approx(0.5)
        steps = {round(a - b, 9) for a, b in itertools.pairwise(keeps)}
        assert steps == {round(0.5 / 54, 9)}
        assert all(
            m.keep == 1 for m in models.build("resnet110", 10).modules() if hasattr(m, "keep")
        )


def test_padded_shortcut_by_hand():
    maps = torch.arange(2 * 4 * 4.0).reshape(1, 2, 4, 4)
    result = Padded(2, 4, 2)(maps)
    assert result.shape == (1, 4, 2, 2)
    assert torch.equal(result[0, 1], torch.tensor([[0.0, 2.0], [8.0, 10.0]]))
    assert (result[0, 0] == 0).all()
    assert (result[0, 3] == 0).all()


def test_unknown_names_are_explained():
    with pytest.raises(InputError, match="Did you mean resnet18"):
        models.build("resnet81", 10)
    with pytest.raises(InputError, match="depth"):
        models.build("lenet5", 10, depth=3)
    with pytest.raises(InputError, match="at least 2"):
        models.build("mlp", 1)
    assert all(models.available().values())


class Timm(nn.Module):
    """A stand-in for timm: says itself which part is the classifier."""

    def __init__(self):
        super().__init__()
        self.fc, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def get_classifier(self):
        return self.last

    def forward(self, x):
        return self.last(self.fc(x).relu())


class Torchvision(nn.Module):
    """A stand-in for torchvision's VGG or MobileNet: a classifier of several layers."""

    def __init__(self, name):
        super().__init__()
        self.features = nn.Linear(4, 6)
        setattr(self, name, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(self.features(x))


class Distilled(Timm):
    """A stand-in for timm's distilled models: two classifiers, whose answers are averaged."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def get_classifier(self):
        return self.last, self.head


class TestSplit:
    @pytest.mark.parametrize(
        ("model", "name"),
        [
            (Timm(), "last"),
            (Torchvision("classifier"), "classifier.2"),
            (Torchvision("heads"), "heads.2"),
            (models.build("mlp", 3, inputs=4), "classifier"),
            (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), "2"),
            (nn.Sequential(OrderedDict(body=nn.Linear(4, 6), top=nn.Linear(6, 3))), "top"),
        ],
    )
    def test_finds_the_head(self, model, name):
        rows = torch.randn(5, 4)
        result = models.split(model)
        assert result.name == name
        assert torch.equal(result.head(result.extractor(rows)), model(rows))
        assert result.head is model.get_submodule(name)  # the same weights, no copy

    def test_head_said_by_name(self):
        model = Torchvision("classifier")
        result = models.split(model, head="classifier")
        assert result.extractor(torch.randn(5, 4)).shape == (5, 6)

    def test_errors_name_what_there_is(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Flatten())
        with pytest.raises(InputError, match="found no classifier head in Sequential"):
            models.split(model)
        with pytest.raises(InputError, match="found no classifier head in Sequential"):
            models.split(nn.Sequential(nn.Linear(4, 3)))  # no features before it
        with pytest.raises(InputError, match=r"no module 'top'; it has: 0, 1"):
            models.split(model, head="top")
        assert models.split(model, head="1").name == "1"

    def test_head_called_twice_is_refused(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 3)

            def forward(self, x):
                return self.fc(self.fc(x))

        with pytest.raises(InputError, match="called 2 times"):
            models.split(Twice()).extractor(torch.randn(2, 3))


def test_of_two_classifiers_one_must_be_named():
    with pytest.raises(InputError, match="has 2 classifiers"):
        models.split(Distilled())
    assert models.split(Distilled(), head="last").name == "last"
