"""Pretrained weights from files: names of other libraries, fresh heads, what is refused."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from calibrant import models
from calibrant.core.errors import InputError
from calibrant.training.config import Config
from calibrant.training.setup import _build_network


def torchvision_names(state):
    """Rename a state of ours as torchvision has it."""
    renamed = {}
    for name, tensor in state.items():
        name = re.sub(r"^stem\.0", "conv1", re.sub(r"^stem\.1", "bn1", name))
        name = re.sub(r"^stages\.(\d)", lambda match: f"layer{int(match[1]) + 1}", name)
        name = re.sub(r"\.norm(\d)", r".bn\1", name).replace("shortcut", "downsample")
        renamed[re.sub(r"^classifier", "fc", name)] = tensor
    return renamed


@pytest.fixture(scope="module")
def pretrained():
    torch.manual_seed(0)
    network = models.build("resnet18", 6, stem="imagenet")
    network.stem[1].running_mean.normal_()
    return network.eval()


@pytest.mark.parametrize("form", ["safetensors", "torch", "wrapped"])
def test_weights_of_another_library_make_the_same_network(pretrained, tmp_path, form):
    state = torchvision_names(pretrained.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer2.0.downsample.0.weight"} <= set(state)
    assert {"layer4.1.bn2.bias", "fc.weight"} <= set(state)
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pt")
    if form == "safetensors":
        save_file(state, path)
    elif form == "torch":
        torch.save(state, path)
    else:
        torch.save({"state_dict": {f"module.{name}": x for name, x in state.items()}}, path)
    network = models.build("resnet18", 6, stem="imagenet", weights=path).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(network(images), pretrained(images))


def test_a_head_for_other_classes_is_fresh(pretrained, tmp_path):
    save_file(pretrained.state_dict(), tmp_path / "w.safetensors")
    torch.manual_seed(1)
    network = models.build("resnet18", 4, stem="imagenet")
    before = network.classifier.weight.clone()
    fresh = models.load_weights(network, tmp_path / "w.safetensors")
    assert fresh == ("classifier.weight", "classifier.bias")
    assert torch.equal(network.classifier.weight, before)
    assert torch.equal(network.stem[0].weight, pretrained.stem[0].weight)


def test_a_classifier_becomes_the_body_of_a_deeplab(tmp_path):
    torch.manual_seed(0)
    body = models.build("resnet50", 7, stem="imagenet")
    torch.save(torchvision_names(body.state_dict()), tmp_path / "w.pt")
    network = models.build("deeplabv3_resnet50", 3, weights=str(tmp_path / "w.pt"))
    for name, tensor in body.state_dict().items():
        if not name.startswith("classifier"):
            assert torch.equal(network.state_dict()[f"body.{name}"], tensor), name


def test_a_run_names_its_weights_among_the_options_of_its_network(pretrained, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(pretrained.state_dict(), path)
    options = {"stem": "imagenet", "weights": str(path)}
    config = Config(data="cifar10", model="resnet18", model_options=options)
    from calibrant.data.images import Images

    images = Images(torch.zeros(6, 3, 32, 32, dtype=torch.uint8), torch.arange(6), tuple("abcdef"))
    network = _build_network(config, images)
    assert torch.equal(network.stem[0].weight, pretrained.stem[0].weight)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("layer3.0.conv1.weight"), "missing: stages.2.0.conv1.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "no place for extra"),
        (
            lambda state: state.update({"conv1.weight": torch.zeros(64, 3, 3, 3)}),
            r"stem.0.weight has the shape \(64, 3, 3, 3\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(pretrained, tmp_path, spoil, message):
    state = torchvision_names(pretrained.state_dict())
    spoil(state)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(InputError, match=message):
        models.build("resnet18", 6, stem="imagenet", weights=tmp_path / "w.pt")


def test_files_that_are_no_state_dict_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        models.build("resnet18", 6, weights=tmp_path / "none.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")  # a pickled object could run code
    with pytest.raises(InputError, match="cannot be read"):
        models.build("resnet18", 6, weights=tmp_path / "module.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(InputError, match="holds no state dict"):
        models.build("resnet18", 6, weights=tmp_path / "list.pt")
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="no name in the file"):
        models.build("resnet18", 6, weights=tmp_path / "other.pt")


def test_an_unknown_stem_is_refused():
    with pytest.raises(InputError, match="stem"):
        models.build("resnet18", 6, stem="imagenett")
