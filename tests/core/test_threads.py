"""Small steps of work take one thread, and leave the caller's number of threads be."""

from __future__ import annotations

import pytest
import torch

from calibrant import calibrators
from calibrant.core.threads import one_thread


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_one_thread_within_and_the_callers_after_also_of_an_error():
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_two_that_overlap_leave_what_was_before_the_first():
    first, second = one_thread(), one_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_num_threads() == 1
    second.__exit__(None, None, None)
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_intra_order_is_fitted_in_one_thread(monkeypatch):
    logits = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    labels = logits.argmax(1)
    labels[::4] = 0
    seen = set()
    step = torch.optim.Adam.step

    def watched(self, *args, **kwargs):
        seen.add(torch.get_num_threads())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    calibrators.get("intra_order").fit(logits, labels)
    assert seen == {1}
    assert torch.get_num_threads() == 3
