"""A loss as a CUDA graph gives what the loss gives, whatever the caller does with it."""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.losses.graphed import _Replay, _restore_state
from tests.helpers.loss_names import PRIMARY, SECONDARY

NAMES = [*PRIMARY, *SECONDARY]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def batch(rows=64, classes=10, seed=0, device="cuda", dtype=torch.float32):
    how = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=how)
    labels = torch.randint(classes, (rows,), generator=how)
    return logits.to(device, dtype).requires_grad_(), labels.to(device)


def call(loss, logits, target):
    index = torch.arange(len(logits), device=logits.device)
    return loss(logits, target, index=index) if loss.needs_index else loss(logits, target)


def gradient(value, logits):
    (actual,) = torch.autograd.grad(value, logits, retain_graph=True)
    return actual


def same(left, right):
    """But for the order in which threads of the card add numbers up."""
    rtol = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(left.dtype, 1e-5)
    torch.testing.assert_close(left, right, rtol=rtol, atol=1e-7)


class TestWithoutACard:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_loss_is_called_as_it_is(self, name):
        logits, target = batch(device="cpu")
        plain, wrapped = (losses.get(name, num_samples=64) for _ in range(2))
        value = call(losses.graphed(wrapped), logits, target)
        expected = call(plain, logits, target)
        assert value == expected
        assert torch.equal(gradient(value, logits), gradient(expected, logits))

    def test_rows_and_targets_are_checked(self):
        loss = losses.graphed(losses.get("crl", num_samples=4))
        assert loss.needs_index
        with pytest.raises(InputError, match="the sample of each row"):
            loss(*batch(device="cpu"))
        assert not losses.graphed(losses.Focal()).needs_index

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_a_gradient_is_scaled_before_it_is_rounded(self, dtype):
        """By a stand-in for the graph: the value and the slope of the logits in float32."""

        def stand_in(logits, labels):
            wide = logits.detach().float().requires_grad_()
            with torch.enable_grad():
                value = losses.cross_entropy(wide, labels)
            return value.detach(), torch.autograd.grad(value, wide)[0]

        logits, target = batch(4096, device="cpu", dtype=dtype)
        value = _Replay.apply(stand_in, logits, target)
        expected = losses.cross_entropy(logits, target)
        assert value == expected
        for scale in (1.0, 2.0**16):  # the second is what a gradient scaler begins with
            actual = gradient(scale * value, logits)
            assert actual.dtype == dtype
            assert torch.equal(actual, gradient(scale * expected, logits))

    def test_a_graph_is_of_this_loss_and_these_options(self):
        """Whatever a graph has in it tells it from others."""
        given = batch(device="cpu")
        loss = losses.graphed(losses.get("focal+0.5*avuc", weight=torch.ones(10)))
        seen = [loss._key(given)]
        assert loss._key(batch(seed=1, device="cpu")) == seen[0]

        def changed(act):
            act()
            key = loss._key(given)
            assert hash(key)
            assert key not in seen
            seen.append(key)

        inner = loss.loss
        inner.betas = tuple(float(text) for text in ("0.5",))  # another of the same value
        assert loss._key(given) == seen[0]
        changed(lambda: setattr(inner.primary, "gamma", np.float64(1.0)))
        changed(lambda: setattr(inner.primary, "gamma", np.float32(1.5)))
        changed(lambda: setattr(inner.primary, "weight", inner.primary.weight.double()))
        changed(lambda: setattr(inner, "betas", (0.25,)))
        changed(lambda: inner.secondaries.__setitem__(0, losses.AvUCGS()))
        changed(lambda: setattr(inner, "primary", losses.Brier(weight=inner.primary.weight)))
        changed(lambda: setattr(loss, "loss", losses.Brier(weight=inner.primary.weight)))
        changed(loss.eval)
        changed(lambda: setattr(loss.loss, "odd", lambda: None))
        changed(lambda: setattr(loss.loss, "odd", [1]))
        assert loss._key((given[0].double(), given[1])) not in seen

    def test_what_changes_meanwhile_is_put_back_and_nothing_else_is_written(self, monkeypatch):
        monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
        loss = losses.get("crl", num_samples=64, weight=torch.ones(10))
        version = loss.primary.weight._version
        with _restore_state(loss, torch.device("cpu")):
            call(loss, *batch(device="cpu"))
            assert loss.secondaries[0].history.counts[1].sum() == 64
        assert loss.secondaries[0].history.counts.sum() == 0
        assert loss.primary.weight._version == version

    def test_only_losses_are_taken(self):
        for wrong in (None, "focal", losses.focal):
            with pytest.raises(InputError, match="needs a loss such as"):
                losses.graphed(wrong)
        assert losses.graphed(losses.get("mmce")).local_batch
        for plain in (losses.Focal(), torch.nn.CrossEntropyLoss()):
            assert not losses.graphed(plain).local_batch
            assert not losses.graphed(plain).needs_index

    def test_copies_and_state(self):
        loss = losses.graphed(losses.get("crl", num_samples=64))
        call(loss, *batch(device="cpu"))
        again = copy.deepcopy(loss)
        assert torch.equal(
            again.state_dict()["loss.secondaries.0.history.counts"],
            loss.loss.secondaries[0].history.counts,
        )
        assert again.loss.secondaries[0].history.counts[1].sum() == 64


@needs_cuda
class TestOnACard:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
    @pytest.mark.parametrize("name", [*NAMES, "focal+0.5*s_avuc", "flsd+0.1*acls"])
    def test_values_and_gradients_of_every_batch(self, name, dtype):
        plain, wrapped = (losses.get(name, num_samples=64).cuda() for _ in range(2))
        loss = losses.graphed(wrapped)
        for seed, rows in enumerate((64, 64, 32, 64)):  # a last batch is smaller
            logits, target = batch(rows, seed=seed, dtype=dtype)
            value, expected = call(loss, logits, target), call(plain, logits, target)
            assert value.dtype == expected.dtype
            same(value, expected)
            same(gradient(value, logits), gradient(expected, logits))
        assert len(loss._graphs) == 2
        assert None not in loss._graphs.values()
        for mine, other in zip(wrapped.buffers(), plain.buffers(), strict=True):
            assert torch.equal(mine, other)  # memory is as if no graph had been made

    def test_several_calls_before_a_backward_and_values_kept(self):
        loss, plain = losses.graphed(losses.get("acls")), losses.get("acls")
        batches = [batch(seed=seed) for seed in range(3)]
        values = [loss(*batch) for batch in batches]
        (values[0] + 3 * values[1] + values[2]).backward()
        for factor, (logits, target), value in zip((1, 3, 1), batches, values, strict=True):
            expected = plain(logits, target)
            same(value, expected)
            same(logits.grad, factor * gradient(expected, logits))

    def test_a_backward_repeated_is_the_same(self):
        logits, target = batch()
        value = losses.graphed(losses.get("mmce"))(logits, target)
        first = gradient(2 * value, logits)
        assert torch.equal(first, gradient(2 * value, logits))
        (slope,) = torch.autograd.grad(value, logits, create_graph=True)
        with pytest.raises(RuntimeError, match=r"twice|does not require grad"):
            slope.sum().backward()

    def test_probabilities_weights_and_ignored_rows(self):
        weight = torch.linspace(0.5, 1.5, 10)
        plain = losses.Focal(weight=weight).cuda()
        loss = losses.graphed(plain)
        logits, target = batch()
        soft = torch.softmax(torch.randn(64, 10, device="cuda"), 1)
        some = target.clone()
        some[::3] = -100
        for given in (target, soft, some):
            value, expected = loss(logits, given), plain(logits, given)
            same(value, expected)
            same(gradient(value, logits), gradient(expected, logits))
        assert len(loss._graphs) == 2  # which rows are ignored is read anew
        plain.weight.fill_(1.0)
        same(loss(logits, target), losses.Focal()(logits, target))

    def test_options_changed_are_seen(self):
        loss = losses.graphed(losses.Focal(gamma=2.0))
        logits, target = batch()
        loss(logits, target)
        loss.loss.gamma = 0.0
        same(loss(logits, target), torch.nn.functional.cross_entropy(logits, target))

    def test_losses_without_a_graph_are_called_directly(self):
        logits, target = batch()
        rows = losses.graphed(losses.Focal(reduction="none"))
        assert rows(logits, target).shape == (64,)
        assert list(rows._graphs.values()) == [None]
        loss = losses.graphed(losses.Focal(), most=1)
        with torch.no_grad():
            same(loss(logits, target), losses.Focal()(logits, target))
        assert not loss._graphs
        for count in (64, 32, 16):
            logits, target = batch(count)
            same(loss(logits, target), losses.Focal()(logits, target))
        assert len(loss._graphs) == 1

    def test_a_loss_that_reads_values_back_warns_and_is_called_directly(self):
        class Reads(torch.nn.Module):
            def forward(self, input, target):
                return torch.nn.functional.cross_entropy(input, target) * float(input.new_ones(()))

        logits, target = batch()
        loss, here = losses.graphed(Reads()), torch.cuda.current_stream()
        with pytest.warns(UserWarning, match="no CUDA graph can be made of Reads"):
            value = loss(logits, target)
        same(value, torch.nn.functional.cross_entropy(logits, target))
        assert torch.cuda.current_stream() == here
        same(loss(logits, target), value)  # and the card is well
        other = losses.graphed(losses.Brier())
        same(other(logits, target), losses.Brier()(logits, target))

    def test_dense_logits_autocast_and_a_thread_beside(self):
        draw = torch.Generator().manual_seed(0)
        logits = torch.randn(2, 5, 16, 16, generator=draw).cuda()
        logits = logits.to(memory_format=torch.channels_last).requires_grad_()
        target = torch.randint(5, (2, 16, 16), generator=draw).cuda()
        loss, plain = losses.graphed(losses.get("sb_ece")), losses.get("sb_ece")
        stop = threading.Event()

        def pins():
            while not stop.is_set():
                torch.ones(1000).pin_memory()

        beside = threading.Thread(target=pins)
        beside.start()
        try:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                value, expected = loss(logits, target), plain(logits, target)
        finally:
            stop.set()
            beside.join()
        assert None not in loss._graphs.values()
        same(value, expected)
        same(gradient(value, logits), gradient(expected, logits))

    def test_within_a_checkpoint(self):
        weight = torch.linspace(0.5, 1.5, 10).cuda()
        for text in ("acls", "crl", "focal"):
            loss, plain = (losses.get(text, num_samples=64, weight=weight) for _ in range(2))
            loss, plain = losses.graphed(loss.cuda()), plain.cuda()
            logits, target = batch()
            for _ in range(2):  # what is computed again sees what the first call recorded
                actual, expected = (
                    checkpoint(call, objective, logits * weight, target, use_reentrant=False)
                    for objective in (loss, plain)
                )
                same(gradient(actual, logits), gradient(expected, logits))

    def test_weights_that_learn_have_their_gradient(self):
        weight = torch.linspace(0.5, 1.5, 10).cuda().requires_grad_()
        loss = losses.graphed(losses.Focal(weight=weight))
        (actual,) = torch.autograd.grad(loss(*batch()), weight)
        (expected,) = torch.autograd.grad(losses.Focal(weight=weight)(*batch()), weight)
        same(actual, expected)

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
    def test_on_each_of_two_cards(self):
        loss = losses.graphed(losses.get("acls"))
        for seed in range(2):
            for device in ("cuda:0", "cuda:1"):
                logits, target = batch(seed=seed, device=device)
                value, expected = loss(logits, target), losses.get("acls")(logits, target)
                same(value, expected)
                same(gradient(value, logits), gradient(expected, logits))

    @pytest.mark.parametrize("name", NAMES)
    def test_no_host_waits_once_captured(self, name):
        loss = losses.graphed(losses.get(name, num_samples=64).cuda())
        logits, target = batch()
        index = {"index": torch.arange(64, device="cuda")} if loss.needs_index else {}
        loss(logits, target, **index).backward()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss(logits, target, **index).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
