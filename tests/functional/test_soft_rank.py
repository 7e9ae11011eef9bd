"""The soft rank is the projection it claims to be, and its gradient is that projection's."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant.core.errors import InputError
from calibrant.functional.soft_rank import device_pooling
from calibrant.functional.soft_rank import ranks as module
from calibrant.functional.soft_rank import triton_kernels as kernels
from calibrant.functional.soft_rank.cpu_pooling import centre_on_cpu, pool_on_cpu
from calibrant.functional.soft_rank.device_pooling import centre_on_device, pool_on_device
from calibrant.functional.soft_rank.ranks import hard_rank, soft_rank
from tests.reference import soft_rank as reference

STRENGTHS = [0.01, 0.05, 0.3, 1.0, 7.0]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
INF, NAN = math.inf, math.nan


def draw(*shape, seed=0, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).to(device, dtype)


def rank_and_gradient(values, weights, strength):
    leaf = values.detach().clone().requires_grad_()
    ranks = soft_rank(leaf, strength=strength)
    ranks.backward(weights)
    return ranks.detach(), leaf.grad


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize(
    "statement",
    [
        "import calibrant.functional.soft_rank.ranks",
        "from calibrant.functional.soft_rank import cpu_pooling, ranks",
        "from calibrant.functional.blocks import Block",
    ],
)
def test_the_public_name_is_the_function_whatever_is_imported_first(statement):
    code = (
        f"{statement}\n"
        "from calibrant import functional\n"
        "from calibrant.functional import hard_rank, soft_rank\n"
        "from calibrant.functional.soft_rank import device_pooling, ranks\n"
        "assert functional.soft_rank is soft_rank is ranks.soft_rank\n"
        "assert functional.hard_rank is hard_rank is ranks.hard_rank\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the forward pass is the projection -----------------------------------------------------


def test_the_example_worked_by_hand():
    values = torch.tensor([0.9, 0.1, 0.3], dtype=torch.float64)
    wide = torch.tensor([2 + 1.4 / 3, 2 - 1.0 / 3, 2 - 0.4 / 3], dtype=torch.float64)
    narrow = torch.tensor([3, 1.25, 1.75], dtype=torch.float64)
    for expected, strength in ((wide, 1.0), (narrow, 0.4)):
        close = {"rtol": 0, "atol": 1e-14}
        torch.testing.assert_close(soft_rank(values, strength=strength), expected, **close)
        slow = torch.tensor(reference.soft_rank(values.tolist(), strength), dtype=torch.float64)
        torch.testing.assert_close(slow, expected, **close)


@pytest.mark.parametrize("strength", [0.05, 0.2, 0.5, 2.0])
@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_a_quadratic_program_over_the_faces_of_the_permutahedron_agrees(n, strength):
    values = draw(n, seed=n).numpy()
    scaled = values / strength
    faces = reference.subsets(n)
    table = np.array([[float(i in face) for i in range(n)] for face in faces])
    least = np.array([len(face) * (len(face) + 1) / 2 for face in faces])
    solved = minimize(
        lambda r: 0.5 * ((r - scaled) ** 2).sum(),
        np.full(n, (n + 1) / 2),
        jac=lambda r: r - scaled,
        constraints=[
            {"type": "ineq", "fun": lambda r: table @ r - least, "jac": lambda r: table},
            {
                "type": "eq",
                "fun": lambda r: r.sum() - n * (n + 1) / 2,
                "jac": lambda r: np.ones(n),
            },
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    actual = soft_rank(torch.from_numpy(values), strength=strength).numpy()
    np.testing.assert_allclose(actual, solved.x, atol=2e-6)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("n", [1, 2, 10, 300, 65_536])
def test_the_conditions_of_a_projection_hold(n, strength):
    """r is in the permutahedron, and no vertex lies further along values/ε − r than r does."""
    values = draw(n, seed=3)
    ranks = soft_rank(values, strength=strength)
    ladder = torch.arange(1, n + 1, dtype=torch.float64)
    slack = (ranks.sort().values.cumsum(0) - ladder.cumsum(0)) / ladder
    assert slack.min() > -1e-7  # sums of the k smallest are at least 1 + ... + k
    assert abs(float(slack[-1])) < 1e-7
    residual = values / strength - ranks
    residual = residual - residual.mean()
    furthest = (residual.sort().values * ladder).sum()
    assert abs(float(furthest - (residual * ranks).sum())) <= 1e-7 * n * (1 + float(furthest.abs()))


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 50, 200])
def test_pooling_one_value_after_another_agrees(n, strength):
    values = draw(n, seed=5 + n)
    expected = torch.tensor(reference.soft_rank(values.tolist(), strength), dtype=torch.float64)
    torch.testing.assert_close(soft_rank(values, strength=strength), expected, rtol=0, atol=1e-10)


def test_as_the_strength_goes_to_0_it_is_the_hard_rank_with_ties_shared():
    values = torch.tensor([0.5, 0.1, 0.5, 0.9, 0.1, 0.5], dtype=torch.float64)
    expected = torch.tensor([4.0, 1.5, 4.0, 6.0, 1.5, 4.0], dtype=torch.float64)
    assert reference.hard_rank(values.tolist()) == expected.tolist()
    torch.testing.assert_close(hard_rank(values), expected)
    for strength in (0.02, 1e-6, 1e-300, 5e-324):
        torch.testing.assert_close(soft_rank(values, strength=strength), expected)


def test_as_the_strength_goes_to_infinity_it_is_the_mean_rank():
    values = draw(9)
    ranks = soft_rank(values, strength=1e12)
    torch.testing.assert_close(ranks, torch.full_like(ranks, 5.0))
    assert soft_rank(values, strength=1e300).tolist() == [5.0] * 9


@pytest.mark.parametrize("strength", STRENGTHS)
def test_ranks_span_no_more_places_than_the_values_over_the_strength(strength):
    values = draw(40, 127)
    spread = values.amax(1) - values.amin(1)
    ranks = soft_rank(values, strength=strength)
    span = ranks.amax(1) - ranks.amin(1)
    assert bool((span <= (spread / strength).clamp_max(126) + 1e-9).all())
    if strength >= 1:  # all in one block: exactly that many
        torch.testing.assert_close(span, spread / strength)


def test_it_moves_with_its_values_and_not_with_their_level():
    values = draw(4, 60, seed=2)
    shuffle = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    ranks = soft_rank(values)
    torch.testing.assert_close(soft_rank(values[:, shuffle]), ranks[:, shuffle])
    torch.testing.assert_close(soft_rank(values + 3.0), ranks)
    torch.testing.assert_close(soft_rank(values * 4, strength=0.2), ranks)
    torch.testing.assert_close(soft_rank(-values), 61 - ranks)
    assert bool(
        (
            (values.unsqueeze(2) < values.unsqueeze(1))
            <= (ranks.unsqueeze(2) <= ranks.unsqueeze(1) + 1e-12)
        ).all()
    )


def test_rows_of_a_batch_are_ranked_independently():
    values = draw(2, 3, 41, seed=4)
    weights = draw(2, 3, 41, seed=5)
    values[0, 1] *= 1e6  # one row far apart, two constant: none touches its neighbours
    values[1, :2] = 0.25
    ranks, gradient = rank_and_gradient(values, weights, 0.03)
    for i in range(2):
        for j in range(3):
            alone = rank_and_gradient(values[i, j], weights[i, j], 0.03)
            torch.testing.assert_close(ranks[i, j], alone[0])
            torch.testing.assert_close(gradient[i, j], alone[1])


def test_rows_that_are_not_contiguous():
    values, weights = draw(41, 3), draw(41, 3, seed=1)
    strided = rank_and_gradient(values.t(), weights.t(), 0.05)
    packed = rank_and_gradient(values.t().contiguous(), weights.t().contiguous(), 0.05)
    for actual, expected in zip(strided, packed, strict=True):
        assert torch.equal(actual, expected)


def test_confidences_of_a_real_batch(data_folder):
    """Ties of saturated confidences included; about 20 of 127 places at the default strength."""
    with np.load(data_folder / "logits" / "cifar10-resnet20.npz") as file:
        name = next(key for key in file.files if "logits" in key)
        logits = torch.from_numpy(file[name][:128]).double()
    confidence = logits.softmax(-1).amax(-1)
    for strength in (0.05, 0.01):
        ranks = soft_rank(confidence, strength=strength)
        slow = reference.soft_rank(confidence.tolist(), strength)
        torch.testing.assert_close(ranks, torch.tensor(slow, dtype=torch.float64))
        assert float(ranks.max() - ranks.min()) <= min(127.0, 1 / strength)


# --- the gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("shape", [(1,), (2,), (6,), (3, 9), (2, 2, 5)])
def test_gradcheck_in_float64_once_and_twice(shape, strength):
    values = draw(*shape, seed=11).requires_grad_()

    def function(x):
        return soft_rank(x, strength=strength)

    assert torch.autograd.gradcheck(function, values, atol=1e-6)
    assert torch.autograd.gradgradcheck(function, values, atol=1e-6)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_the_jacobian_in_closed_form(n, strength):
    values = draw(n, seed=20 + n)
    actual = torch.autograd.functional.jacobian(lambda x: soft_rank(x, strength=strength), values)
    expected = torch.tensor(reference.jacobian(values.tolist(), strength), dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_constant_row_is_one_block():
    values, weights = torch.full((5,), 0.3, dtype=torch.float64), draw(5)
    ranks, gradient = rank_and_gradient(values, weights, 0.5)
    assert ranks.tolist() == [3.0] * 5
    torch.testing.assert_close(gradient, (weights - weights.mean()) / 0.5)


def test_values_a_place_apart_are_on_a_kink_and_still_exact():
    ranks, gradient = rank_and_gradient(torch.arange(6.0), torch.arange(6.0), 1.0)
    assert ranks.tolist() == [1, 2, 3, 4, 5, 6]
    assert bool(torch.isfinite(gradient).all())


def test_a_second_derivative_through_the_values_is_0():
    values = draw(12).requires_grad_()
    (slope,) = torch.autograd.grad(soft_rank(values).square().sum(), values, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), values)
    # slope = 2 J r, so its derivative is 2 J J = 2 J / ε, whose columns add up to 0
    torch.testing.assert_close(curvature, torch.zeros_like(curvature), rtol=0, atol=1e-8)


# --- what is not an ordinary row ------------------------------------------------------------


def test_a_row_of_one_and_of_none():
    ranks, gradient = rank_and_gradient(torch.tensor([[3.0], [-INF]]), torch.ones(2, 1), 0.05)
    assert ranks.tolist() == [[1.0], [1.0]]
    assert gradient.tolist() == [[0.0], [0.0]]
    assert soft_rank(torch.empty(0)).shape == hard_rank(torch.empty(0)).shape == (0,)
    assert soft_rank(torch.empty(0, 4)).shape == hard_rank(torch.empty(0, 4)).shape == (0, 4)


EXTREME = [
    ([1e30, -1e30, 1e30, 0.0], [3.5, 1.0, 3.5, 2.0]),
    ([1e38, -3e38, 3e38, 1e-38], [3.0, 1.0, 4.0, 2.0]),
    ([INF, -INF, 1.0, INF], [3.5, 1.0, 2.0, 3.5]),
    ([1e30, 0.0, 0.025, 1e30], [3.5, 1.25, 1.75, 3.5]),  # small steps beside large ones
]


@pytest.mark.parametrize(("values", "expected"), EXTREME)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_and_infinite_values(values, expected, dtype):
    row, weights = torch.tensor(values, dtype=dtype), torch.arange(4, dtype=dtype)
    in_dtype = torch.tensor(expected, dtype=dtype)
    ranks, gradient = rank_and_gradient(row, weights, 0.05)
    torch.testing.assert_close(ranks, in_dtype, rtol=1e-6, atol=0)
    assert bool(torch.isfinite(gradient).all())
    plain = pool_on_device(row[None], 0.05)
    torch.testing.assert_close(plain[0][0], in_dtype, rtol=1e-6, atol=0)


def test_a_nan_makes_its_row_nan_and_no_other():
    values = torch.tensor([[0.1, NAN, 0.3], [0.1, 0.2, 0.3]])
    for ranks in (soft_rank(values), hard_rank(values), pool_on_device(values, 0.05)[0]):
        assert bool(ranks[0].isnan().all())
        assert bool(torch.isfinite(ranks[1]).all())


@pytest.mark.parametrize("strength", [0.0, -1.0, NAN, INF])
def test_a_wrong_strength_raises(strength):
    with pytest.raises(InputError, match="strength must be positive and finite"):
        soft_rank(torch.rand(3), strength=strength)


def test_values_without_ranks_raise():
    with pytest.raises(InputError, match="no dimension"):
        soft_rank(torch.tensor(1.0))
    with pytest.raises(InputError, match=r"found torch\.int64"):
        hard_rank(torch.arange(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_at_least_float32_and_the_gradient_comes_back_as_given(dtype):
    values = draw(600, dtype=dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ranks = soft_rank(values, strength=0.002)
    assert ranks.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = soft_rank(values.detach().double(), strength=0.002)
    torch.testing.assert_close(ranks.detach().double(), exact, rtol=1e-6, atol=1e-6)
    ranks.sum().backward()
    assert values.grad.dtype == dtype


def test_it_compiles_without_a_graph_break_forward_and_backward():
    def objective(x):
        return (soft_rank(torch.sigmoid(x), strength=0.1).log() * x).sum()

    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    for seed in range(2):
        values = draw(3, 20, seed=seed).requires_grad_()
        (expected,) = torch.autograd.grad(objective(values), values)
        (actual,) = torch.autograd.grad(compiled(values), values)
        torch.testing.assert_close(actual, expected)


def test_the_operators_keep_the_rules_of_custom_operators():
    values = draw(3, 11).requires_grad_()
    torch.library.opcheck(torch.ops.calibrant.soft_rank.default, (values, 0.1))
    order, first, last = pool_on_cpu(values, 0.1)[1:]
    arguments = (draw(3, 11).requires_grad_(), order, first, last, 0.1)
    torch.library.opcheck(torch.ops.calibrant.soft_rank_gradient.default, arguments)


# --- the other ways to the same blocks ------------------------------------------------------


def rows_to_compare(rows, n, scale, seed, dtype):
    values = (draw(rows, n, seed=seed) - 0.5) * scale * 0.05
    if seed % 2:  # ties
        values = (values * 8 / scale).round() * scale / 8
    return values.to(dtype)


def assert_the_same(actual, expected, dtype, *, blocks=True):
    """Ranks agree, and blocks too; where ties put values on a kink, either side is right."""
    close = {"rtol": 1e-6, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0, "atol": 1e-8}
    torch.testing.assert_close(actual[0].cpu(), expected[0], **close)
    for some, other in zip(actual[2:], expected[2:], strict=True):
        assert not blocks or torch.equal(some.cpu(), other)


@pytest.mark.sampled(count=35)
@pytest.mark.parametrize("stretch", [2, 8, 512])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 700, 3000])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4, 1e12])
def test_tensor_operations_find_the_blocks_pooling_does(scale, n, stretch, monkeypatch):
    monkeypatch.setattr(device_pooling, "_STRETCH", stretch)
    for seed, dtype in enumerate((torch.float64, torch.float64, torch.float32)):
        values = rows_to_compare(3, n, scale, seed, dtype)
        weights = draw(3, n, seed=seed + 7, dtype=dtype)
        expected, actual = pool_on_cpu(values, 0.05), pool_on_device(values, 0.05)
        assert_the_same(actual, expected, dtype)
        slope = centre_on_device(weights, *actual[1:], 0.05)
        torch.testing.assert_close(slope, centre_on_cpu(weights, *expected[1:], 0.05))


def test_tensor_operations_keep_their_tables_small(monkeypatch):
    values = draw(50, 300)
    expected = pool_on_device(values, 0.002)
    monkeypatch.setattr(device_pooling, "_TABLE", 50 * 300 * 16)
    actual = pool_on_device(values, 0.002)
    for some, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(some, other)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 65, 512, 700])
def test_long_rows_are_scanned_in_parts(n, monkeypatch):
    values = draw(2, 3, n, seed=n) - 0.5
    monkeypatch.setattr(device_pooling, "_SCANNED", 8)
    sums = device_pooling._sums(values)
    assert bool((sums[..., 0] == 0).all())
    torch.testing.assert_close(sums[..., 1:], values.cumsum(-1), rtol=0, atol=1e-12)
    assert torch.equal(device_pooling._running_max(values), values.cummax(-1).values)
    whole = pool_on_device(values[0], 0.002)
    monkeypatch.undo()
    for some, other in zip(whole, pool_on_device(values[0], 0.002), strict=True):
        torch.testing.assert_close(some, other)


def test_bounds_of_blocks_are_their_first_and_last_places():
    starts = torch.tensor([[1, 0, 0, 1, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]).bool()
    first, last = device_pooling._bounds(starts)
    assert first.tolist() == [[0, 0, 0, 3, 3], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
    assert last.tolist() == [[2, 2, 2, 4, 4], [0, 1, 2, 3, 4], [4, 4, 4, 4, 4]]


def pool_fused(values, strength):
    ranks, packed = kernels.pool_packed(values, strength)
    return ranks, *kernels.unpack(packed)


def centre_fused(grad, order, first, last, strength):
    return kernels.centre_packed(grad, order | first << 16 | last << 32, strength)


def test_order_and_blocks_are_packed_into_one_number_and_back():
    parts = torch.tensor([[0, 1023, 5], [0, 7, 1023], [1023, 1023, 1023]])
    packed = parts[0] | parts[1] << 16 | parts[2] << 32
    assert torch.equal(torch.stack(kernels.unpack(packed)), parts)
    assert kernels._bits(1.0) == 0x3FF0000000000000
    assert kernels._bits(5e-324) == 1


@pytest.mark.parametrize("way", ["sorted", "fused"])
def test_kernels_that_do_not_run_are_left_alone_with_a_warning(way, monkeypatch):
    def fail(device, way):
        raise RuntimeError("no compiler\nmore")

    monkeypatch.setattr(kernels, "available", lambda: True)
    monkeypatch.setattr(kernels, "trial", fail)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    with pytest.warns(RuntimeWarning, match="no compiler"):
        assert module._load_kernels.__wrapped__(torch.device("cuda", 0), way) is None


# In a process of its own, since Triton chooses its interpreter when it is imported. The last
# part makes soft_rank itself use the kernels.
INTERPRETED = """
import torch
from contextlib import nullcontext
from calibrant.functional.soft_rank import ranks as module
from calibrant.functional.soft_rank.cpu_pooling import centre_on_cpu, pool_on_cpu
from calibrant.functional.soft_rank import triton_kernels as kernels
for n, scale, dtype in [(1, 1, torch.float64), (2, 1, torch.float32), (37, 30, torch.float64),
                        (64, 1e-3, torch.float64), (100, 1e9, torch.float64),
                        (48, 5, torch.float32)]:
    torch.manual_seed(n)
    values, weights = torch.randn(2, n, dtype=dtype) * scale * 0.05, torch.randn(2, n, dtype=dtype)
    expected, found = pool_on_cpu(values, 0.05), kernels.pool_by_kernel(values, 0.05)
    ranks, packed = kernels.pool_packed(values, 0.05)
    for some, fused_some, other in zip(found, (ranks, *kernels.unpack(packed)), expected):
        torch.testing.assert_close(some, other)
        torch.testing.assert_close(fused_some, other)
    slope = centre_on_cpu(weights, *expected[1:], 0.05)
    torch.testing.assert_close(kernels.centre_by_kernel(weights, *found[1:], 0.05), slope)
    torch.testing.assert_close(kernels.centre_packed(weights, packed, 0.05), slope)
inf, nan = float("inf"), float("nan")
values = torch.tensor([[inf, -inf, 1, inf], [0.5, 0.5, -0.0, 0.0], [1, nan, inf, 0],
                       [1e30, 0, 0.025, 1e30]])
for strength in (0.05, 5e-324):
    ranks, expected = kernels.pool_packed(values, strength)[0], pool_on_cpu(values, strength)[0]
    torch.testing.assert_close(ranks, expected, equal_nan=True)

module._load_kernels = lambda device, way: kernels
module._find_kernels = lambda values, way: kernels if way == "fused" else None
module._on = lambda device: nullcontext()
values = torch.rand(3, 2, dtype=torch.float64).t().requires_grad_()
weights = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
for again in (False, True):
    ranks = module.soft_rank(values, strength=0.3)
    slope, = torch.autograd.grad(ranks, values, weights, create_graph=again)
    expected, *blocks = pool_on_cpu(values, 0.3)
    torch.testing.assert_close(ranks, expected)
    torch.testing.assert_close(slope, centre_on_cpu(weights, *blocks, 0.3))
twice, = torch.autograd.grad(slope, weights, torch.ones_like(slope).cumsum(1))
counted = torch.ones_like(weights).cumsum(1)
torch.testing.assert_close(twice, centre_on_cpu(counted, *blocks, 0.3))
print("the same")
"""


@pytest.mark.skipif(not kernels.available(), reason="Triton is not installed")
def test_the_kernels_agree_in_the_interpreter_of_triton():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "the same", done.stderr


# --- on a GPU -------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("n", [1, 2, 33, 128, 512, 1000, 2048, 5000])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4, 1e12])
@pytest.mark.parametrize("way", ["fused", "sorted", "plain"])
def test_cuda_gives_what_the_cpu_gives(way, scale, n):
    longest = {**kernels.LONGEST, "plain": math.inf}[way]
    if n > longest or (way != "plain" and not kernels.available()):
        pytest.skip("no kernel for this")
    pool, centre = {
        "fused": (pool_fused, centre_fused),
        "sorted": (kernels.pool_by_kernel, kernels.centre_by_kernel),
        "plain": (pool_on_device, centre_on_device),
    }[way]
    for seed, dtype in enumerate((torch.float64, torch.float64, torch.float32)):
        values = rows_to_compare(3, n, scale, seed, dtype)
        weights = draw(3, n, seed=seed + 7, dtype=dtype)
        expected, actual = pool_on_cpu(values, 0.05), pool(values.cuda(), 0.05)
        assert_the_same(actual, expected, dtype, blocks=seed % 2 == 0)
        slope = centre(weights.cuda(), *actual[1:], 0.05)
        assert slope.is_cuda
        on_host = centre_on_cpu(weights, *(part.cpu() for part in actual[1:]), 0.05)
        torch.testing.assert_close(slope.cpu(), on_host)


@needs_cuda
@pytest.mark.parametrize("n", [1, 128, 512, 4096, 65_536])
def test_cuda_never_waits_for_the_device(n):
    values = draw(2, n, dtype=torch.float32, device="cuda")
    weights = draw(2, n, seed=1, dtype=torch.float32, device="cuda")
    rank_and_gradient(values, weights, 0.05)  # kernels are compiled the first time
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ranks, gradient = rank_and_gradient(values, weights, 0.05)
        pool_on_device(values, 0.05)
        hard_rank(values)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = rank_and_gradient(values.cpu(), weights.cpu(), 0.05)
    torch.testing.assert_close(ranks.cpu(), expected[0], rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(gradient.cpu(), expected[1], rtol=1e-5, atol=1e-4)


@needs_cuda
@pytest.mark.parametrize("n", [128, 512, 5000])
def test_cuda_graphs_capture_it(n):
    values = draw(2, n, dtype=torch.float32, device="cuda").requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(soft_rank(values).square().sum(), values)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (gradient,) = torch.autograd.grad(soft_rank(values).square().sum(), values)
    with torch.no_grad():
        values.copy_(draw(2, n, seed=9))
    graph.replay()
    (expected,) = torch.autograd.grad(soft_rank(values).square().sum(), values)
    torch.testing.assert_close(gradient, expected)


@needs_cuda
@pytest.mark.parametrize(("values", "expected"), EXTREME)
def test_cuda_huge_and_infinite_values(values, expected):
    ranks = soft_rank(torch.tensor([[NAN, 1.0, 2.0, 3.0], values], device="cuda")).cpu()
    assert bool(ranks[0].isnan().all())
    torch.testing.assert_close(ranks[1], torch.tensor(expected), rtol=1e-6, atol=0)


@needs_cuda
def test_cuda_gradcheck_autocast_and_compile():
    values = draw(3, 9, device="cuda").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: soft_rank(x, strength=0.1), values)
    assert torch.autograd.gradgradcheck(lambda x: soft_rank(x, strength=0.1), values)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert soft_rank(values.bfloat16()).dtype == torch.float32

    def objective(x):
        return (soft_rank(torch.sigmoid(x), strength=0.1).log() * x).sum()

    compiled = torch.compile(objective, fullgraph=True)
    (expected,) = torch.autograd.grad(objective(values), values)
    (actual,) = torch.autograd.grad(compiled(values), values)
    torch.testing.assert_close(actual, expected)
