"""A calibrator on a model: one module, whatever the model gives."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.calibrators import get
from calibrant.core.errors import InputError
from tests.helpers.calibrator_cases import ROWS, fit, fitted, overconfident

Pair = namedtuple("Pair", ["logits", "hidden"])
Start = namedtuple("Start", ["scores", "hidden"])


@dataclasses.dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


class Giving(nn.Module):
    """A network whose output is of some kind."""

    def __init__(self, kind, classes=4):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(5, classes)

    def forward(self, rows, scale=1.0):
        return self.kind(self.layer(rows) * scale, rows)


KINDS = {
    "tensor": (lambda z, h: z, lambda out: out),
    "tuple": (lambda z, h: (z, h), lambda out: out[0]),
    "list": (lambda z, h: [z, h], lambda out: out[0]),
    "dict": (lambda z, h: {"logits": z, "hidden": h}, lambda out: out["logits"]),
    "ordered": (lambda z, h: OrderedDict(out=z, hidden=h), lambda out: out["out"]),
    "named tuple": (Pair, lambda out: out.logits),
    "other named tuple": (Start, lambda out: out.scores),
    "dataclass": (Output, lambda out: out.logits),
    "object": (lambda z, h: SimpleNamespace(logits=z, hidden=h), lambda out: out.logits),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_keeps_its_kind(kind):
    made, taken = KINDS[kind]
    model, calibrator = Giving(made), fitted("temperature")
    rows = torch.randn(7, 5)
    plain, output = model(rows), calibrant.attach(model, calibrator)(rows)
    assert type(output) is type(plain)
    assert torch.equal(taken(output), calibrator(taken(plain)))
    assert not torch.equal(taken(output), taken(plain))
    if kind != "tensor":
        hidden = output[1] if isinstance(output, (tuple, list)) else None
        hidden = output["hidden"] if isinstance(output, dict) else hidden
        hidden = output.hidden if hidden is None else hidden
        assert hidden is rows


def test_the_models_own_output_is_not_changed():
    held = {"logits": torch.randn(3, 4)}
    before = held["logits"].clone()
    joined = calibrant.attach(Giving(lambda z, h: held), fitted("temperature"))
    assert joined(torch.randn(3, 5)) is not held
    assert torch.equal(held["logits"], before)


def test_an_output_without_scores_is_named():
    joined = calibrant.attach(Giving(lambda z, h: {"loss": z}), fitted("temperature"))
    with pytest.raises(InputError, match="gave a dict with 'loss'"):
        joined(torch.randn(3, 5))


def test_what_cannot_be_attached_is_named():
    with pytest.raises(InputError, match=r"model must be an nn\.Module, found function"):
        calibrant.attach(lambda x: x, fitted("temperature"))
    with pytest.raises(InputError, match="calibrator must be"):
        calibrant.attach(nn.Linear(2, 2), nn.Linear(2, 2))


def test_arguments_pass_through():
    model = Giving(KINDS["tensor"][0])
    joined = calibrant.attach(model, fitted("temperature"))
    rows = torch.randn(3, 5)
    assert torch.equal(joined(rows, scale=2.0), fitted("temperature")(model(rows, scale=2.0)))


def test_modes_pass_through():
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)).eval()
    joined = calibrant.attach(model, fitted("temperature"))
    assert not joined.training
    joined.train()
    assert model[1].training
    joined.eval()
    assert not model[1].training


def test_a_column_of_binary_scores_stays_a_column():
    logits, labels = overconfident(classes=2)
    calibrator = fit("temperature", logits[:, 1] - logits[:, 0], labels)
    model, rows = nn.Linear(5, 1), torch.randn(6, 5)
    output = calibrant.attach(model, calibrator)(rows)
    assert torch.equal(output, calibrator(model(rows).squeeze(1)).unsqueeze(1))


def test_probabilities_stay_probabilities():
    logits, labels = overconfident()
    calibrator = fit("temperature", torch.from_numpy(logits).softmax(1), labels, from_logits=False)
    model = nn.Sequential(nn.Linear(5, 4), nn.Softmax(1))
    rows = torch.randn(6, 5)
    output = calibrant.attach(model, calibrator)(rows)
    torch.testing.assert_close(output, calibrator.predict_proba(model(rows)))
    torch.testing.assert_close(output.sum(1), torch.ones(6))


@pytest.mark.parametrize("name", ROWS)
def test_the_state_holds_everything(name):
    joined = calibrant.attach(nn.Linear(5, 4), copy.deepcopy(fitted(name)))
    fresh = calibrant.attach(nn.Linear(5, 4), get(name))
    rows = torch.randn(3, 5)
    with pytest.raises(InputError, match="not fitted"):
        fresh(rows)
    fresh.load_state_dict(joined.state_dict())
    assert torch.equal(fresh(rows), joined(rows))


@pytest.mark.sampled(count=4)
@pytest.mark.parametrize("name", ROWS)
def test_it_compiles_and_moves(name):
    joined = calibrant.attach(nn.Linear(5, 4), copy.deepcopy(fitted(name)))
    rows = torch.randn(6, 5)
    torch._dynamo.reset()  # it counts what was compiled before
    compiled = torch.compile(joined, backend="eager")
    torch.testing.assert_close(compiled(rows), joined(rows))
    single = joined(rows)
    moved = joined.to(torch.float64)
    assert moved(rows.double()).dtype == torch.float64
    torch.testing.assert_close(moved(rows.double()).float(), single, atol=1e-4, rtol=1e-4)
    on_meta = copy.deepcopy(joined).to("meta")
    assert all(tensor.device.type == "meta" for tensor in on_meta.state_dict().values())


def test_a_calibrator_goes_where_the_model_is():
    model = nn.Linear(5, 4, device="meta")
    calibrator = copy.deepcopy(fitted("temperature"))
    calibrant.attach(model, calibrator)
    assert calibrator.num_classes_.device.type == "meta"


@pytest.mark.parametrize("training", [True, False])
def test_fitting_from_a_loader_restores_the_model(training):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)).train(training)
    rows, labels = torch.randn(90, 5), torch.arange(90) % 3
    seen = []
    model.register_forward_hook(lambda module, *_: seen.append(module.training))
    loader = DataLoader(TensorDataset(rows, labels), batch_size=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        made = get("temperature").fit_loader(model, loader, class_names=["a", "b", "c"])
    assert seen == [False] * 3
    assert model.training is training
    assert model[1].training is training
    assert made.class_names_ == ("a", "b", "c")
    alone = fit("temperature", model.eval()(rows).detach(), labels)
    assert torch.equal(made.temperature_, alone.temperature_)


def test_fitting_from_a_loader_takes_probabilities_and_marked_rows():
    model = nn.Sequential(nn.Linear(5, 3), nn.Softmax(1))
    rows, labels = torch.randn(90, 5), torch.arange(90) % 3
    labels[80:] = -1
    loader = DataLoader(TensorDataset(rows, labels), batch_size=32)
    made = get("identity", from_logits=False).fit_loader(model, loader, ignore_index=-1)
    assert made.summary_["rows"] == 80
    with pytest.raises(InputError, match="labels must lie in"):
        get("identity", from_logits=False).fit_loader(model, loader)


def test_a_calibrator_of_probabilities_refuses_a_model_of_logits():
    """It clipped the logits to [0, 1], and said nothing."""
    rng = torch.Generator().manual_seed(0)
    probs = torch.randn(300, 3, generator=rng).softmax(1)
    labels = torch.multinomial(probs, 1, generator=rng).squeeze(1)
    calibrator = get("temperature", from_logits=False).fit(probs, labels)
    rows = torch.randn(6, 5, generator=rng)
    layer = nn.Linear(5, 3)
    with pytest.raises(InputError, match=r"fitted on probabilities \(from_logits=False\)"):
        calibrant.attach(layer, calibrator)(rows)
    fine = calibrant.attach(nn.Sequential(layer, nn.Softmax(1)), calibrator)
    assert torch.allclose(fine(rows).sum(1), torch.ones(6))
    program = torch.export.export(fine, (rows,))
    assert torch.equal(program.module()(rows), fine(rows))
