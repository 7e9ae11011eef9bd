"""What the tests of losses of a batch share: batches, and checks that hold for each of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch

from tests.helpers.digits_training import train
from tests.reference.losses_batch import onehot

IGNORE = 255


def sample(rows=40, classes=5, seed=0, scale=2.0):
    """Overconfident float64 logits, labels drawn from a blunter version of them."""
    random = np.random.default_rng(seed)
    z = random.normal(0, scale, (rows, classes))
    p = np.exp(z / 2)
    p /= p.sum(1, keepdims=True)
    y = [random.choice(classes, p=row) for row in p]
    return torch.tensor(z), torch.tensor(y)


def soft_labels(rows=40, classes=5, seed=1):
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.full(classes, 0.4), rows))


def dense(ignore_index=IGNORE):
    """(3,4,2,5) logits, 30 rows, a third of which are ignored."""
    z, y = sample(30, 4, seed=2)
    z = z.reshape(3, 2, 5, 4).movedim(-1, 1).contiguous()
    y = y.clone()
    y[::3] = ignore_index
    return z, y.reshape(3, 2, 5)


BATCHES = {
    "hard": (*sample(), {}),
    "two-classes": (*sample(25, 2, seed=3), {}),
    "many-classes": (*sample(12, 30, seed=4), {}),
    "one-row": (*sample(1, 3, seed=6), {}),
    "soft": (sample()[0], soft_labels(), {}),
    "soft-dense": (
        dense()[0],
        soft_labels(30, 4).reshape(3, 2, 5, 4).movedim(-1, 1).contiguous(),
        {},
    ),
    "dense": (*dense(), {"ignore_index": IGNORE}),
    "ignored-by-default": (*dense(-100), {}),
}


def plain(z, target, options):
    """Rows of logits and of label probabilities that count, as lists."""
    classes = z.shape[1]
    rows = z.movedim(1, -1).reshape(-1, classes).tolist()
    if target.is_floating_point():
        return rows, target.movedim(1, -1).reshape(-1, classes).tolist()
    labels = target.reshape(-1).tolist()
    ignored = options.get("ignore_index", -100)
    kept = [i for i, label in enumerate(labels) if label != ignored]
    return [rows[i] for i in kept], [onehot(labels[i], classes) for i in kept]


def agrees(loss, reference, name, rel=1e-9, **options):
    """The loss's value on a batch, as mean and as sum, is the reference's."""
    z, target, extra = BATCHES[name]
    rows, labels = plain(z, target, extra)
    expected = reference(rows, labels, **options)
    assert loss(z, target, **options, **extra).item() == pytest.approx(expected, rel=rel)
    actual = loss(z, target, reduction="sum", **options, **extra).item()
    assert actual == pytest.approx(expected * len(rows), rel=rel)


def gradient(loss, z, target, **options):
    z = z.detach().clone().requires_grad_()
    (actual,) = torch.autograd.grad(loss(z, target, **options), z)
    return actual


def holds_for_any_batch_loss(loss, *, steepest=100, **options):
    """Rows in any order, shifted logits, ignored rows, soft onehots, float32, no rows at all."""
    z, y = sample(seed=5)
    value, slope = loss(z, y, **options), gradient(loss, z, y, **options)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss(z[order], y[order], **options), value)
    torch.testing.assert_close(gradient(loss, z[order], y[order], **options), slope[order])
    torch.testing.assert_close(loss(z + 3.0, y, **options), value)
    torch.testing.assert_close(slope.sum(1), torch.zeros(len(y), dtype=z.dtype))

    table = torch.nn.functional.one_hot(y, z.shape[1]).double()
    torch.testing.assert_close(loss(z, table, **options), value)
    torch.testing.assert_close(gradient(loss, z, table, **options), slope)

    for extreme in (0.0, 1e4, float("nan")):
        rows = torch.full((7, z.shape[1]), extreme, dtype=z.dtype)
        rows[:, 1] *= -1
        more, labels = torch.cat([z, rows]), torch.cat([y, torch.full((7,), -100)])
        torch.testing.assert_close(loss(more, labels, **options), value)
        torch.testing.assert_close(gradient(loss, more, labels, **options)[: len(y)], slope)

    nobody = torch.full_like(y, -100)
    assert loss(z, nobody, **options).item() == 0
    assert gradient(loss, z, nobody, **options).abs().max() == 0

    single = loss(z.float(), y, **options)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), value, rtol=1e-4, atol=1e-6)
    half = loss(z.bfloat16(), y, **options)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, loss(z.bfloat16().float(), y, **options))
    with pytest.raises(ValueError, match="mean or sum"):
        loss(z, y, reduction="none", **options)
    stays_finite(loss, steepest, **options)


def stays_finite(loss, steepest, **options):
    """Huge logits, certain and uniform rows, all right, all wrong, one row: no NaN, no inf."""
    right = torch.tensor([0, 1, 2])
    for scale in (0.0, 1e-4, 1.0, 10.0, 17.0, 30.0, 90.0, 110.0, 1e4):
        certain = torch.eye(3) * scale
        for z in (certain, certain * 2 - scale):
            for y in (right, (right + 1) % 3, torch.tensor([0, 1, 0]), torch.zeros_like(right)):
                for rows in (slice(0, 3), slice(0, 1)):
                    for dtype in (torch.float32, torch.bfloat16, torch.float64):
                        part = z[rows].to(dtype)
                        assert loss(part, y[rows], **options).isfinite()
                        slope = gradient(loss, part, y[rows], **options)
                        assert slope.isfinite().all()
                        assert slope.abs().max() <= steepest, (scale, slope)


def compiles(loss, **options):
    """One graph, the same value and gradient."""
    z, y = sample()
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z, y, **options), loss(z, y, **options))
    torch.testing.assert_close(gradient(compiled, z, y, **options), gradient(loss, z, y, **options))


@lru_cache(maxsize=1)
def plain_run():
    """Digits learnt by cross-entropy alone, to compare with."""
    from calibrant import losses

    return train(losses.get("cross_entropy"), seed=0)


def probabilities(z):
    """softmax in numpy, for gradients by hand."""
    each = np.exp(z - z.max(1, keepdims=True))
    return each / each.sum(1, keepdims=True)


def through_confidence(slope, p):
    """The logit gradient of what moves by slope with c = max p: dc/dz_k = c(1[k=ŷ] - p_k)."""
    predicted = p.argmax(1)
    c = p.max(1)
    return (slope * c)[:, None] * (np.eye(p.shape[1])[predicted] - p)


def through_entropy(slope, p):
    """The same for h: dh/dz_k = -p_k (ln p_k + h), from h = -sum p ln p and dp_j/dz_k."""
    h = -(p * np.log(p)).sum(1)
    return -slope[:, None] * p * (np.log(p) + h[:, None])
