"""CRL: confidence ranked by each training sample's record of being classified right."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import multiprocessing
from torch.nn.functional import one_hot

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.losses import CorrectnessHistory, CorrectnessRanking, crl
from tests.helpers.digits_training import digits, train
from tests.reference import losses_logits as reference


def batch(rows=9, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    seen = torch.randint(0, 6, (rows,), generator=generator)
    right = (torch.rand(rows, generator=generator) * (seen + 1)).long().clamp_max(seen)
    return logits, labels, {"right": right, "seen": seen}


def gradient(value, logits):
    logits = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(logits), logits)
    return slope


def by_loops(logits, record, kept=slice(None)):
    rows = {key: value[kept].tolist() for key, value in record.items()}
    return reference.crl(logits[kept].tolist(), **rows)


# ------------------------------------------------------------------ the margin's condition


def margin_by_loops(logits, margin):
    """Confidence of the rows beyond the margin, and the gradient of acls eq. 8, 11 and S(20)."""
    values, slopes = [], []
    for row in logits.tolist():
        powers = [math.exp(z - max(row)) for z in row]
        p = [power / sum(powers) for power in powers]
        top = row.index(max(row))
        slope = [0.0] * len(row)
        if row[top] - min(row) >= margin:
            slope[top] = p[top] * (1 - p[top])
        for j, z in enumerate(row):
            if j != top and row[top] - z >= margin:
                slope[j] = -p[top] * p[j]
        values.append(p[top] if row[top] - min(row) >= margin else 0.0)
        slopes.append(slope)
    return values, slopes


@pytest.mark.parametrize("margin", [0.0, 2.5, 4.0, 10.0])
def test_margin_condition_is_the_reference(margin):
    logits, labels, _ = batch(rows=12)
    values, slopes = margin_by_loops(logits, margin)
    options = {"condition": "margin", "margin": margin}
    loss = CorrectnessRanking(**options)
    assert loss(logits, labels).item() == pytest.approx(sum(values) / 12, rel=1e-12)
    slope = gradient(lambda z: crl(z, labels, **options, reduction="sum"), logits)
    torch.testing.assert_close(slope, torch.tensor(slopes, dtype=torch.float64))
    marked = labels.clone()
    marked[3] = -100
    kept = [value for i, value in enumerate(values) if i != 3]
    assert crl(logits, marked, **options).item() == pytest.approx(sum(kept) / 11, rel=1e-12)
    dense = logits.reshape(3, 4, 4).movedim(2, 1)
    assert crl(dense, labels.reshape(3, 4), **options).item() == pytest.approx(sum(values) / 12)


def test_margin_condition_of_all_classes_is_the_gradient_of_confidence():
    logits, labels, _ = batch()
    logits[:, 0] += 20.0  # every other class lies beyond the margin
    logits.requires_grad_()
    options = {"condition": "margin", "margin": 1.0}
    assert torch.autograd.gradcheck(lambda z: crl(z, labels, **options), logits)


def test_margin_condition_needs_no_history():
    loss = losses.get("crl(condition='margin', margin=6)", num_samples=10)
    assert not loss.needs_index
    assert loss.secondaries[0].history is None
    assert losses.get("crl(condition='margin')").betas == (1.0,)
    logits, labels, _ = batch()
    with pytest.raises(InputError, match="give right= and seen="):
        crl(logits, labels)
    with pytest.raises(InputError, match="condition must be ranking or margin, found 'none'"):
        CorrectnessRanking(condition="none")
    with pytest.raises(InputError, match="margin must be a distance"):
        CorrectnessRanking(condition="margin", margin=-1.0)


# ------------------------------------------------------------------ values


def test_the_reference_is_what_was_worked_by_hand():
    rows = [[math.log(3), 0], [0, 0]]
    assert reference.crl(rows, [1, 3], [4, 4]) == pytest.approx(0.75)
    assert reference.crl(rows, [4, 3], [4, 4]) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_crl_is_the_reference(seed):
    logits, labels, record = batch(seed=seed)
    expected = by_loops(logits, record)
    assert expected > 0
    assert crl(logits, labels, **record).item() == pytest.approx(expected, rel=1e-12)
    total = crl(logits, labels, **record, reduction="sum").item()
    assert total == pytest.approx(9 * expected, rel=1e-12)
    soft = one_hot(labels, 4).double()
    assert crl(logits, soft, **record).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gone", [[0], [8], [3, 4], [0, 1, 8], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_pairs_skip_ignored_rows(gone, seed):
    logits, labels, record = batch(seed=seed)
    record["seen"] = record["seen"] + 1  # so that every pair has a say
    labels[gone] = 77
    kept = labels != 77
    value = crl(logits, labels, **record, ignore_index=77)
    assert value.item() == pytest.approx(by_loops(logits, record, kept), rel=1e-12)
    slope = gradient(lambda x: crl(x, labels, **record, ignore_index=77), logits)
    assert (slope[~kept] == 0).all()


# c = p_top has the derivative c(1[k = top] - p_k). A pair (i, j) that pays gives -s/N of it to row
# i and +s/N of it to row j, s the sign of the histories' difference.
def test_the_gradient_is_the_one_derived_by_hand():
    logits, labels, record = batch(seed=1)
    p = torch.softmax(logits, 1).numpy()
    rate = (record["right"] / record["seen"].clamp_min(1)).double().numpy()
    seen, expected, paying = record["seen"].numpy(), np.zeros_like(p), 0
    slopes = p.max(1, keepdims=True) * (np.eye(4)[p.argmax(1)] - p)
    for i in range(9):
        j = (i + 1) % 9
        gap = (rate[i] - rate[j]) * (seen[i] > 0) * (seen[j] > 0)
        if -np.sign(gap) * (p[i].max() - p[j].max()) + abs(gap) > 0:
            expected[i] -= np.sign(gap) * slopes[i] / 9
            expected[j] += np.sign(gap) * slopes[j] / 9
            paying += 1
    assert 0 < paying < 9
    slope = gradient(lambda x: crl(x, labels, **record), logits)
    np.testing.assert_allclose(slope.numpy(), expected, atol=1e-15)


def test_gradcheck():
    logits, labels, record = batch(seed=3)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: crl(x, labels, **record), logits)


# acls section 3.2: unlike ACLS's, what CRL takes off the label of the predicted class shrinks
# again as its probability nears 1: p(1 - p).
def test_smoothing_by_crl_is_not_monotone_in_the_logit():
    steps = torch.linspace(0.5, 12.0, 60, dtype=torch.float64)
    record = {"right": torch.tensor([0, 4]), "seen": torch.tensor([4, 4])}
    labels = torch.zeros(2, dtype=torch.int64)
    pushes = []
    for step in steps:
        rows = torch.tensor([[float(step), 0.0, 0.0], [0.2, 0.0, 0.0]], dtype=torch.float64)
        pushes.append(gradient(lambda x: crl(x, labels, **record), rows)[0, 0])
    f, p = torch.stack(pushes), torch.exp(steps) / (torch.exp(steps) + 2)
    torch.testing.assert_close(f, p * (1 - p))
    assert f.argmax() < 10
    assert f[-1] < 0.01 * f.max()


def test_equal_histories_and_unknown_ones_ask_nothing():
    logits, labels, _ = batch()
    same = {"right": torch.full((9,), 2), "seen": torch.full((9,), 3)}
    assert crl(logits, labels, **same) == 0
    assert (gradient(lambda x: crl(x, labels, **same), logits) == 0).all()
    never = {"right": torch.zeros(9).long(), "seen": torch.zeros(9).long()}
    assert crl(logits, labels, **never) == 0
    # Rates compare, not counts: 1 of 2 is 2 of 4.
    rates = {"right": torch.tensor([1, 2] * 4 + [1]), "seen": torch.tensor([2, 4] * 4 + [2])}
    assert crl(logits, labels, **rates) == 0


def test_confidence_in_the_order_of_history_and_as_far_apart_costs_nothing():
    p = torch.tensor([0.9, 0.4], dtype=torch.float64)
    logits = torch.stack((p, (1 - p) / 2, (1 - p) / 2), 1).log()
    labels = torch.zeros(2, dtype=torch.int64)
    record = {"right": torch.tensor([10, 6]), "seen": torch.tensor([10, 10])}
    assert crl(logits, labels, **record) == 0
    record["right"] = torch.tensor([10, 2])  # 0.8 apart by history, 0.5 by confidence
    assert crl(logits, labels, **record).item() == pytest.approx(0.3)


# ------------------------------------------------------------------ the memory


def test_it_compares_with_the_history_as_it_was_and_then_records():
    logits, labels, _ = batch()
    index = torch.tensor([4, 0, 19, 7, 8, 9, 1, 2, 3])
    loss = CorrectnessRanking(num_samples=20)
    first = logits.clone().requires_grad_()
    assert loss(first, labels, index=index) == 0
    right = (logits.argmax(1) == labels).int()
    assert 0 < right.sum() < 9
    assert loss.history.counts[0, index].tolist() == right.tolist()
    assert loss.history.counts[1, index].tolist() == [1] * 9
    assert loss.history.counts[1].sum() == 9
    record = {"right": right, "seen": torch.ones(9, dtype=torch.int32)}
    other = logits.flip(0).requires_grad_()
    assert loss(other, labels, index=index).item() == pytest.approx(by_loops(other, record))
    assert loss.history.counts[1, index].tolist() == [2] * 9


def test_ignored_rows_are_not_recorded_and_soft_labels_by_their_largest_class():
    logits, labels, _ = batch()
    logits.requires_grad_()
    loss = CorrectnessRanking(num_samples=9, ignore_index=66)
    soft = one_hot(labels, 4) * 0.6 + 0.1
    loss(logits, soft.double(), index=torch.arange(9))
    assert loss.history.counts[0].tolist() == (logits.argmax(1) == labels).int().tolist()
    labels[4] = 66
    loss(logits, labels, index=torch.arange(9))
    assert loss.history.counts[1].tolist() == [2, 2, 2, 2, 1, 2, 2, 2, 2]


def test_a_sample_twice_in_a_batch_is_counted_twice():
    history = CorrectnessHistory(3)
    history.record(torch.tensor([1, 1, 2]), torch.tensor([True, False, True]))
    assert history.counts.tolist() == [[0, 1, 1], [0, 2, 1]]
    ignored = torch.tensor([True, False])
    history.record(torch.tensor([0, 2]), torch.tensor([True, True]), ignored.logical_not())
    assert history.counts.tolist() == [[0, 1, 2], [0, 2, 2]]
    history.record(torch.tensor([2]), torch.tensor([False]), torch.tensor([False]))
    right, seen = history.of(torch.tensor([2, 1]))
    assert (right.tolist(), seen.tolist()) == ([2, 1], [2, 2])


def test_nothing_is_recorded_outside_training():
    logits, labels, _ = batch()
    loss = CorrectnessRanking(num_samples=9).eval()
    loss(logits.requires_grad_(), labels, index=torch.arange(9))
    loss.train()
    with torch.no_grad():
        loss(logits, labels, index=torch.arange(9))
    assert loss.history.counts.sum() == 0
    composed = losses.get("crl", num_samples=9)
    composed.parts(logits, labels, index=torch.arange(9))  # for a log
    assert composed.secondaries[0].history.counts.sum() == 0
    composed(logits, labels, index=torch.arange(9))
    assert composed.secondaries[0].history.counts[1].sum() == 9


def test_the_history_is_saved_and_survives_half_precision():
    logits, labels, _ = batch()
    loss = CorrectnessRanking(num_samples=9)
    loss(logits.requires_grad_(), labels, index=torch.arange(9))
    other = CorrectnessRanking(num_samples=9)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other.history.counts, loss.history.counts)
    again = logits.flip(0)
    assert other(again, labels, index=torch.arange(9)) == loss(again, labels, index=torch.arange(9))
    assert loss.half().history.counts.dtype == torch.int32
    with pytest.raises(RuntimeError, match="size mismatch"):
        CorrectnessRanking(num_samples=8).load_state_dict(loss.state_dict())


def test_synchronizing_alone_changes_nothing():
    history = CorrectnessHistory(4)
    history.record(torch.tensor([0, 2]), torch.tensor([True, False]))
    before = history.counts.clone()
    for _ in range(2):
        history.synchronize()
        assert torch.equal(history.counts, before)
    assert torch.equal(history.merged, before)


def one_process(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    history = CorrectnessHistory(5)
    for epoch in range(2):  # one sample of its own, and one that both have seen in turn
        history.record(torch.tensor([rank, 4]), torch.tensor([True, epoch == rank]))
        history.synchronize()
        history.synchronize()
    torch.save(history.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_processes_add_up_what_each_has_seen(tmp_path):
    # Forked, as starting afresh would take longer than all else here.
    multiprocessing.start_processes(
        one_process, args=(str(tmp_path),), nprocs=2, start_method="fork"
    )
    for rank in range(2):
        actual = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert actual["counts"].tolist() == [[2, 2, 0, 0, 2], [2, 2, 0, 0, 4]]


def test_it_compiles_to_one_graph_and_still_records():
    _, labels, _ = batch()
    labels[2] = -100
    plain, other = CorrectnessRanking(num_samples=9), CorrectnessRanking(num_samples=9)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for seed in range(3):
        rows = batch(seed=seed)[0].requires_grad_()
        expected = plain(rows, labels, index=torch.arange(9))
        torch.testing.assert_close(compiled(rows, labels, index=torch.arange(9)), expected)
        assert torch.equal(other.history.counts, plain.history.counts)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_ranks_as_the_cpu_does():
    here = CorrectnessRanking(num_samples=9)
    on_gpu = CorrectnessRanking(num_samples=9).cuda()
    for seed in range(4):
        rows, labels, _ = batch(seed=seed)
        labels[seed] = -100
        mine, theirs = rows.clone().requires_grad_(), rows.cuda().requires_grad_()
        expected = here(mine, labels, index=torch.arange(9))
        actual = on_gpu(theirs, labels.cuda(), index=torch.arange(9, device="cuda"))
        expected.backward()
        actual.backward()
        torch.testing.assert_close(actual.cpu(), expected)
        torch.testing.assert_close(theirs.grad.cpu(), mine.grad)
        assert torch.equal(on_gpu.history.counts.cpu(), here.history.counts)


def test_defaults_and_what_it_says_of_itself():
    logits, labels, _ = batch()
    ce = torch.nn.functional.cross_entropy(logits, labels)
    loss = losses.get("crl", num_samples=9)
    assert loss.needs_index
    assert loss.betas == (1.0,)
    loss(logits.requires_grad_(), labels, index=torch.arange(9))
    record = dict(zip(("right", "seen"), loss.secondaries[0].history.counts.clone(), strict=True))
    rows = logits.flip(0)
    expected = torch.nn.functional.cross_entropy(rows, labels) + by_loops(rows, record)
    assert loss(rows, labels, index=torch.arange(9)).item() == pytest.approx(expected.item())
    assert CorrectnessRanking.needs_index
    assert CorrectnessRanking.local_batch
    assert "num_samples=9" in repr(loss)
    assert ce > 0
    total = CorrectnessRanking(num_samples=9, reduction="sum")
    total.load_state_dict(loss.secondaries[0].state_dict())
    record = dict(zip(("right", "seen"), total.history.counts.clone(), strict=True))
    value = total(rows, labels, index=torch.arange(9)).item()
    assert value == pytest.approx(9 * by_loops(rows, record))


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, r"index=.*0\.\.8"),
        (torch.arange(8), r"each of the 9 rows.*\(8,\)"),
        (torch.arange(9.0), "float32"),
        (torch.ones(9, dtype=torch.bool), "bool"),
        (torch.arange(9) + 1, r"0\.\.8 \(num_samples=9\), found 9"),
        (torch.arange(9) - 1, "found -1"),
    ],
)
def test_a_wrong_index_raises(index, message):
    logits, labels, _ = batch()
    loss = CorrectnessRanking(num_samples=9)
    with pytest.raises(InputError, match=message):
        loss(logits.requires_grad_(), labels, index=index)
    assert loss.history.counts.sum() == 0


def test_other_wrong_inputs_raise():
    logits, labels, record = batch()
    dense = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(InputError, match=r"\(N,K\), found \(2, 4, 3\)"):
        CorrectnessRanking(num_samples=9)(torch.randn(2, 4, 3), dense, index=torch.arange(2))
    with pytest.raises(InputError, match=r"\(N,K\), found \(2, 4, 3\)"):
        crl(torch.randn(2, 4, 3), dense, right=dense, seen=dense)
    for number in (0, -3, 2.5, None):
        with pytest.raises(InputError, match="num_samples"):
            CorrectnessRanking(num_samples=number)
    with pytest.raises(InputError, match="num_samples"):
        losses.get("crl")
    with pytest.raises(InputError, match="whole batch"):
        CorrectnessRanking(num_samples=9, reduction="none")
    with pytest.raises(InputError, match="each sample"):
        crl(logits, labels, **record, reduction="none")
    with pytest.raises(InputError, match=r"loss\.to"):
        CorrectnessRanking(num_samples=9)(
            logits.to("meta"), labels.to("meta"), index=torch.arange(9)
        )


# ------------------------------------------------------------------ training


@pytest.mark.slow
def test_training_ranks_confidence_by_the_record():
    def agreement(history, run):
        """Of pairs whose records differ, the share that confidence orders alike."""
        rate = (history.counts[0] / history.counts[1]).double()
        confidence = run.train_logits.softmax(1).max(1).values
        gap = rate.unsqueeze(1) - rate
        alike = ((confidence.unsqueeze(1) - confidence) * gap > 0)[gap != 0]
        return float(alike.double().mean())

    number = len(digits()[1])
    watched = losses.compose(losses.CrossEntropy(), (0.0, CorrectnessRanking(num_samples=number)))
    ranked = losses.get("crl", num_samples=number)
    before, after = (
        agreement(loss.secondaries[0].history, train(loss)) for loss in (watched, ranked)
    )
    seen = ranked.secondaries[0].history.counts[1]
    assert seen.min() == seen.max() > 1
    assert after > before + 0.01


def test_a_training_set_may_have_one_sample():
    loss = CorrectnessRanking(num_samples=1)
    logits = torch.randn(1, 3, requires_grad=True)
    value = loss(logits, torch.tensor([1]), index=torch.tensor([0]))
    assert value.item() == 0
    assert loss.history.counts[1].tolist() == [1]


def test_a_missing_index_says_how_to_get_one():
    """A loader that gives no numbers gives an empty tensor of them."""
    loss = losses.get("crl", num_samples=10)
    with pytest.raises(InputError, match="let the data set return each sample's number"):
        loss(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64), index=torch.zeros(0).long())
