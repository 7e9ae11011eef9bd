"""CPC: classes calibrated two by two."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.losses import PairwiseConstraints, cpc
from tests.helpers.digits_training import train
from tests.reference import losses_logits as reference

module = importlib.import_module("calibrant.losses.cpc")  # the name is the function's too


def batch(rows=7, classes=5, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    return logits, torch.randint(classes, (rows,), generator=generator)


def tables(rows=7, classes=5, seed=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, classes, dtype=torch.float64, generator=generator).softmax(1)


def gradient(value, logits):
    logits = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(logits), logits)
    return slope


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            # A view that broadcasts holds nothing of its own.
            if isinstance(tensor, torch.Tensor) and 0 not in tensor.stride():
                self.entries = max(self.entries, tensor.numel())
        return result


MEMORY = """
import resource, sys, torch
from calibrant import losses
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # MiB
name, rows, soft = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "soft"
logits = torch.randn(rows, 1000).requires_grad_()
target = torch.softmax(logits.detach(), 1) if soft else torch.randint(1000, (rows,))
losses.make(name)(logits[:2, :4], target[:2, :4] if soft else target[:2] % 4).backward()
before = peak()
losses.make(name)(logits, target).backward()
print(peak() - before)
"""


@pytest.mark.sampled(count=1)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is told otherwise there")
@pytest.mark.parametrize(
    ("name", "rows", "kind"),
    [("cpc", 256, "hard"), ("cpc", 256, "soft"), ("kde_ece", 1024, "hard")],
)
def test_a_thousand_classes_take_little_memory(name, rows, kind):
    # What the process holds, not what each tensor does: small ones between large ones cost too.
    command = [sys.executable, "-c", MEMORY, name, str(rows), kind]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1024


def test_the_reference_is_what_was_worked_by_hand():
    assert reference.cpc([[0, 0, 0]], [1]) == pytest.approx(1.1 * math.log(2))
    by_hand = 0.1 * math.log(4 / 3) + math.log(2)
    assert reference.cpc([[math.log(3), 0, 0]], [0]) == pytest.approx(by_hand)


@pytest.mark.parametrize("options", [{}, {"lambda1": 0.7}, {"lambda2": 0.3}, {"lambda2": 0.0}])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_cpc_is_the_reference(classes, options):
    logits, labels = batch(classes=classes)
    expected = reference.cpc(logits.tolist(), labels.tolist(), **options)
    assert cpc(logits, labels, **options).item() == pytest.approx(expected, rel=1e-12)
    soft = one_hot(labels, classes).double()
    assert cpc(logits, soft, **options).item() == pytest.approx(expected, rel=1e-12)
    total = cpc(logits, labels, **options, reduction="sum").item()
    assert total == pytest.approx(7 * expected, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"lambda1": 0.7, "lambda2": 0.3}])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_of_class_probabilities_it_is_the_expectation(classes, options):
    logits, soft = batch(classes=classes)[0], tables(classes=classes)
    expected = reference.cpc_soft(logits.tolist(), soft.tolist(), **options)
    assert cpc(logits, soft, **options).item() == pytest.approx(expected, rel=1e-12)


def test_dense_rows_and_ignored_ones_are_rows_left_out():
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, 4, 3, 2, dtype=torch.float64, generator=generator)
    labels = torch.randint(4, (2, 3, 2), generator=generator)
    labels[0, 1, 1] = labels[1, 2, 0] = 255
    kept = labels != 255
    rows, rest = logits.movedim(1, -1)[kept], labels[kept]
    value = cpc(logits, labels, ignore_index=255)
    expected = reference.cpc(rows.tolist(), rest.tolist())
    assert value.item() == pytest.approx(expected, rel=1e-12)
    slope = gradient(lambda x: cpc(x, labels, ignore_index=255), logits)
    flat = gradient(lambda x: cpc(x, rest), rows)
    torch.testing.assert_close(slope.movedim(1, -1)[kept], flat)
    assert (slope.movedim(1, -1)[~kept] == 0).all()
    soft = tables(12, 4)
    dense = soft.reshape(2, 3, 2, 4).movedim(-1, 1)
    torch.testing.assert_close(cpc(logits, dense), cpc(logits.movedim(1, -1).reshape(12, 4), soft))


def test_defaults_and_options_of_the_class():
    logits, labels = batch()
    labels[3] = 9
    common = {"reduction": "sum", "ignore_index": 9}
    assert PairwiseConstraints(**common)(logits, labels) == cpc(
        logits, labels, lambda1=0.1, lambda2=1.0, **common
    )
    options = {"lambda1": 0.4, "lambda2": 0.2, **common}
    assert PairwiseConstraints(**options)(logits, labels) == cpc(logits, labels, **options)
    logits, labels = batch()
    ce = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(losses.get("cpc")(logits, labels), ce + cpc(logits, labels))
    with pytest.raises(InputError, match="whole batch"):
        PairwiseConstraints(reduction="none")
    for wrong in (math.inf, math.nan, "1"):
        with pytest.raises(InputError, match="finite numbers"):
            PairwiseConstraints(lambda1=wrong)
        with pytest.raises(InputError, match="finite numbers"):
            cpc(logits, labels, lambda2=wrong)


# With sigma(z_j - z_k) = p_j/(p_j + p_k): the first part gives -sum_k p_k/(p_y+p_k)/(K-1) to the
# true class and +p_j/(p_y+p_j)/(K-1) to each other (supplement (8) has it so, (7) the other sign);
# the second sum_l (p_j-p_l)/(p_j+p_l) = sum_l tanh((z_j-z_l)/2) over (K-1)(K-2) to each other.
def test_the_gradient_is_the_one_derived_by_hand():
    logits, labels = batch()
    p = torch.softmax(logits, 1).numpy()
    expected = np.zeros_like(p)
    for n, y in enumerate(labels.tolist()):
        others = [k for k in range(5) if k != y]
        for j in others:
            expected[n, y] -= 0.3 * p[n, j] / (p[n, y] + p[n, j]) / 4
            expected[n, j] += 0.3 * p[n, j] / (p[n, y] + p[n, j]) / 4
            for k in others:
                expected[n, j] += 0.7 * (p[n, j] - p[n, k]) / (p[n, j] + p[n, k]) / 12
    slope = gradient(lambda x: cpc(x, labels, lambda1=0.3, lambda2=0.7), logits)
    np.testing.assert_allclose(slope.numpy(), expected / 7, atol=1e-14)


@pytest.mark.parametrize("pairs", [1, 60, 1 << 18])
def test_gradcheck_whatever_the_blocks(monkeypatch, pairs):
    monkeypatch.setattr(module, "_PAIRS", pairs)
    logits, labels = batch(4)
    logits.requires_grad_()
    soft = tables(4)
    assert torch.autograd.gradcheck(lambda x: cpc(x, labels), logits)
    assert torch.autograd.gradcheck(lambda x: cpc(x, soft), logits)
    dense = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    kinds = torch.randint(4, (2, 3))
    assert torch.autograd.gradcheck(lambda x: cpc(x, kinds), dense)


def test_blocks_do_not_change_the_value(monkeypatch):
    logits, labels = batch(6, 11)
    soft = tables(6, 11)
    whole = cpc(logits, labels), cpc(logits, soft)
    monkeypatch.setattr(module, "_PAIRS", 3 * 6 * 11)
    torch.testing.assert_close((cpc(logits, labels), cpc(logits, soft)), whole)


def test_a_second_derivative_is_refused():
    logits, labels = batch()
    logits.requires_grad_()
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(cpc(logits, labels), logits, create_graph=True)


def test_equal_logits_give_ln_2_a_pair_and_gradients_of_the_first_part_only():
    logits, labels = torch.zeros(3, 6), torch.tensor([0, 3, 5])
    value = cpc(logits, labels)
    assert value.item() == pytest.approx(1.1 * math.log(2), rel=1e-6)
    assert (gradient(lambda x: cpc(x, labels, lambda1=0.0), logits) == 0).all()


def test_order_of_rows_and_a_shift_of_logits_do_not_matter():
    logits, labels = batch()
    whole = cpc(logits, labels)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(cpc(logits[order], labels[order]), whole)
    torch.testing.assert_close(cpc(logits + 31.0, labels), whole)


def test_far_logits_stay_exact():
    logits = torch.tensor([[1e4, -1e4, 0.0, 0.0]], dtype=torch.float32)
    for y, by_hand in (
        (0, (2e4 + 2 * math.log(2)) / 6),
        (1, 0.1 * 4e4 / 3 + (2e4 + 2 * math.log(2)) / 6),
    ):
        assert cpc(logits, torch.tensor([y])).item() == pytest.approx(by_hand, rel=1e-6)
        assert reference.cpc(logits.tolist(), [y]) == pytest.approx(by_hand, rel=1e-6)
    sure = torch.tensor([[30.0, 0.0, 0.0]])  # a tiny first part is not lost among larger numbers
    value = cpc(sure, torch.tensor([0]), lambda2=0.0).item()
    assert value == pytest.approx(0.1 * math.exp(-30), rel=1e-5)


def test_many_classes_never_hold_all_pairs():
    logits, labels = torch.randn(64, 300), torch.randint(300, (64,))
    with Largest() as seen:
        cpc(logits.requires_grad_(), labels).backward()
    assert seen.entries <= 1 << 18
    soft = torch.softmax(torch.randn(64, 300), 1)
    with Largest() as seen:
        cpc(logits, soft).backward()
    assert seen.entries <= 1 << 18
    assert 64 * 300 * 300 > 1 << 22


def test_it_compiles_to_one_graph():
    logits, labels = batch()
    for target in (labels, tables()):
        compiled = torch.compile(PairwiseConstraints(), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(
            gradient(lambda x, c=compiled, t=target: c(x, t), logits),
            gradient(lambda x, t=target: cpc(x, t), logits),
        )


def test_training_evens_out_the_classes_that_are_not_the_label():
    def unevenness(run):
        return float(cpc(run.test_logits, run.test_labels, lambda1=0.0))

    plain, paired = train(losses.get("cross_entropy")), train(losses.get("cpc"))
    assert unevenness(plain) > 2
    assert unevenness(paired) < 1
    right = [(r.test_logits.argmax(1) == r.test_labels).double().mean() for r in (plain, paired)]
    assert right[1] > right[0] - 0.01
