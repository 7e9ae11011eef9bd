"""From a model and a loader: everyone's first step leaves the model as it was."""

from collections import UserDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from calibrant.core.errors import InputError
from calibrant.predictions import Predictions


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return torch.randn(23, 6)


@pytest.fixture
def truth():
    return torch.arange(23) % 4


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.9), nn.Linear(8, 4))


@pytest.fixture
def loader(inputs, truth):
    return DataLoader(TensorDataset(inputs, truth), batch_size=5)


class Wrapped(nn.Module):
    """A model whose output is put into something else."""

    def __init__(self, inner, wrap):
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, pixels):
        return self.wrap(self.inner(pixels))


def expected(model, inputs):
    modes = [m.training for m in model.modules()]
    model.eval()
    with torch.no_grad():
        scores = model(inputs)
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    return scores


def test_outputs_are_those_of_evaluation_mode_in_loader_order(model, loader, inputs, truth):
    predictions = Predictions.from_model(model, loader, class_names=list("abcd"), name="net")
    assert torch.allclose(predictions.scores, expected(model, inputs), atol=1e-6)
    assert torch.equal(predictions.labels, truth)
    assert predictions.is_logits
    assert predictions.class_names == tuple("abcd")
    assert predictions.name == "net"


def test_every_submodules_mode_is_restored(model, loader):
    model.train()
    model[1].eval()  # a frozen normalisation, as in fine-tuning
    modes = [m.training for m in model.modules()]
    statistics = model[1].running_mean.clone()
    Predictions.from_model(model, loader)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(model[1].running_mean, statistics)


def test_modes_are_restored_when_something_fails(model, inputs, truth):
    def failing():
        yield inputs[:5], truth[:5]
        raise RuntimeError("disk gone")

    modes = [m.training for m in model.train().modules()]
    with pytest.raises(RuntimeError, match="disk gone"):
        Predictions.from_model(model, failing())
    assert [m.training for m in model.modules()] == modes


def test_outputs_can_take_part_in_fitting(model, loader):
    predictions = Predictions.from_model(model, loader)
    assert not predictions.scores.is_inference()
    assert not predictions.scores.requires_grad
    temperature = torch.ones((), requires_grad=True)
    nn.functional.cross_entropy(predictions.scores / temperature, predictions.labels).backward()
    assert temperature.grad is not None


def test_it_works_inside_inference_mode(model, loader):
    with torch.inference_mode():
        predictions = Predictions.from_model(model, loader)
    assert not predictions.scores.is_inference()


def test_loaders_of_unknown_length_are_gathered_whole(model, inputs, truth):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(inputs, truth, strict=True))

    for source in (
        DataLoader(Stream(), batch_size=4),
        ((inputs[i : i + 1], truth[i : i + 1]) for i in range(23)),
        [[inputs[:20], truth[:20]], [inputs[20:], truth[20:]]],
    ):
        predictions = Predictions.from_model(model, source)
        assert torch.allclose(predictions.scores, expected(model, inputs), atol=1e-6)
        assert torch.equal(predictions.labels, truth)


def test_loaders_that_give_fewer_or_more_rows_than_their_dataset(model, inputs, truth):
    data = TensorDataset(inputs, truth)
    dropped = DataLoader(data, batch_size=5, drop_last=True)
    assert len(Predictions.from_model(model, dropped)) == 20
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=60)
    assert len(Predictions.from_model(model, DataLoader(data, sampler=sampler, batch_size=7))) == 60


@pytest.mark.parametrize("key", ["label", "labels", "target"])
def test_batches_may_be_dicts(model, inputs, truth, key):
    named = Wrapped(model, lambda scores: scores)
    reference = expected(model, inputs)
    for kind in (dict, UserDict):
        batches = [kind({"pixels": inputs, key: truth})]
        assert torch.allclose(Predictions.from_model(named, batches).scores, reference, atol=1e-6)
    other = [{"image": inputs, key: truth}]  # the only item, under another name
    assert torch.allclose(Predictions.from_model(named, other).scores, reference, atol=1e-6)
    extra = [{"pixels": inputs, "index": torch.arange(23), key: truth}]
    assert torch.allclose(Predictions.from_model(named, extra).scores, reference, atol=1e-6)


def test_outputs_may_be_wrapped_as_hugging_face_and_torchvision_do(model, loader, inputs):
    pair = namedtuple("pair", ["hidden", "logits"])
    reference = expected(model, inputs)
    for wrap in (
        lambda scores: SimpleNamespace(loss=None, logits=scores),
        lambda scores: {"loss": None, "logits": scores},
        lambda scores: {"out": scores, "aux": scores * 2},
        lambda scores: (scores, scores * 2),
        lambda scores: pair(scores * 2, scores),
    ):
        predictions = Predictions.from_model(Wrapped(model, wrap), loader)
        assert torch.allclose(predictions.scores, reference, atol=1e-6)


def test_probabilities_are_said_and_checked(model, loader):
    predictions = Predictions.from_model(
        Wrapped(model, lambda s: s.softmax(1)), loader, outputs="probs"
    )
    assert not predictions.is_logits
    with pytest.raises(InputError, match="outside"):
        Predictions.from_model(model, loader, outputs="probs")
    with pytest.raises(InputError, match="outputs must be"):
        Predictions.from_model(model, loader, outputs="scores")


def test_one_output_is_a_binary_score(inputs):
    for head in (nn.Linear(6, 1), nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))):
        predictions = Predictions.from_model(head, [(inputs, torch.arange(23) % 2)])
        assert predictions.is_binary
        assert predictions.scores.shape == (23,)


def test_dense_outputs_and_ignored_labels(inputs):
    net = nn.Conv2d(1, 3, 1)
    images, masks = torch.randn(6, 1, 4, 4), torch.zeros(6, 4, 4, dtype=torch.long)
    masks[0] = 255
    batches = DataLoader(TensorDataset(images, masks), batch_size=4)
    predictions = Predictions.from_model(net, batches, ignore_index=255)
    assert predictions.is_dense
    assert predictions.scores.shape == (6, 3, 4, 4)
    ragged = [(images, masks), (images[..., :2], masks[..., :2])]
    with pytest.raises(InputError, match="differ between batches"):
        Predictions.from_model(net, ragged, ignore_index=255)


def test_labels_may_be_lists_or_numpy(model, inputs):
    for target in ([1] * 23, np.ones(23, dtype=np.int32)):
        assert Predictions.from_model(model, [(inputs, target)]).labels.sum() == 23


def test_half_precision_outputs_are_kept(inputs, truth):
    net = nn.Linear(6, 4).bfloat16()
    predictions = Predictions.from_model(net, [(inputs.bfloat16(), truth)])
    assert predictions.scores.dtype == torch.bfloat16


def test_a_plain_function_is_a_model(inputs, truth):
    predictions = Predictions.from_model(lambda x: x[:, :4], [(inputs, truth)], device="cpu")
    assert torch.equal(predictions.scores, inputs[:, :4])


def test_what_cannot_be_used_is_named(model, inputs, truth):
    def message(model, batches, **options):
        with pytest.raises(InputError) as caught:
            Predictions.from_model(model, batches, **options)
        return str(caught.value)

    assert "empty" in message(model, [])
    assert "found Tensor" in message(model, [inputs])
    assert "found tuple of 3" in message(model, [(inputs, truth, truth)])
    assert "found keys 'pixels', 'y'" in message(model, [{"pixels": inputs, "y": truth}])
    assert "under one of" in message(model, [{"x": inputs, "label": truth, "labels": truth}])
    assert "(23, 4) for labels of shape (5,)" in message(model, [(inputs, truth[:5])])
    assert "'hidden'" in message(Wrapped(model, lambda s: {"hidden": s}), [(inputs, truth)])
    assert "str" in message(Wrapped(model, lambda s: "logits"), [(inputs, truth)])
    assert "unknown device" in message(model, [(inputs, truth)], device="abacus")
    assert "use the same names" in message(model, [{"a": inputs, "b": inputs, "label": truth}])
    assert "callable" in message(3, [(inputs, truth)])
    assert "labels must be integers" in message(model, [(inputs, truth.float())])
    broken = Wrapped(model, lambda s: s * float("nan"))
    assert "NaN" in message(broken, [(inputs, truth)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there_is_an_error_and_the_model_stays(model, loader):
    model.train()
    with pytest.raises(InputError, match="cuda"):
        Predictions.from_model(model, loader, device="cuda")
    assert model.training
    assert model[0].weight.device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_model_runs_on_a_device_and_returns(model, loader, inputs):
    predictions = Predictions.from_model(model, loader, device="cuda")
    assert predictions.scores.device.type == "cpu"
    assert model[0].weight.device.type == "cpu"
    assert torch.allclose(predictions.scores, expected(model, inputs), atol=1e-3)
    on_device = model.cuda()
    predictions = Predictions.from_model(on_device, loader)
    assert predictions.scores.device.type == predictions.labels.device.type == "cpu"
    assert on_device[0].weight.device.type == "cuda"


def test_progress_goes_to_stderr_only_on_a_terminal(model, loader, capsys, monkeypatch):
    Predictions.from_model(model, loader)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    Predictions.from_model(model, loader)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Predicting" in shown.err
    Predictions.from_model(model, loader, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_model_that_only_knows_keywords_gets_them(inputs, truth):
    class Keywords(nn.Module):
        def forward(self, input_ids=None, **rest):
            assert set(rest) == {"attention_mask"}
            return SimpleNamespace(logits=input_ids[:, :4])

    batch = {"input_ids": inputs, "attention_mask": torch.ones(23), "labels": truth}
    assert torch.equal(Predictions.from_model(Keywords(), [batch]).scores, inputs[:, :4])
