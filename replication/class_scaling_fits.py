"""Measure class-scaling's fits: in pairs, step by step, as its authors' code, on hardest classes.

The suites class-scaling-authors and hard-classes load this file as a plugin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.bench import Measurement, Parts, register_measurement
from calibrant.core.errors import InputError, no_such
from calibrant.evaluation import compare
from calibrant.metrics import ece

# In the calibrator column: ``pair:FIRST:SECOND``, ``optimiser:temperature:nll``,
# ``code:temperature:nll``, ``hardest_classes:even``.
# Stored rows of `hard_classes`, an earlier form that was fitted on the test rows it is judged on,
# keep that name.
PAIR, OPTIMISER, CODE, HARD = "pair", "optimiser", "code", "hardest_classes"
EVEN, UNEVEN = f"{HARD}:even", f"{HARD}:uneven"
# Class-scaling, section 5.2: learning rates, and the epochs of each.
PLAIN = ((1_000, 0.02),)
REDUCED = ((200, 0.005), (400, 0.003), (400, 0.001))  # of focal loss and label smoothing
OBJECTIVES = {"nll": PLAIN, "label_smoothing": REDUCED, "focal": REDUCED, "class_scaled": PLAIN}
CALIBRATORS = (
    "temperature",
    "ensemble_temperature",
    "parameterized_temperature",
    "class_temperature",
)
Numbers = NDArray[np.float64]
Loss = Callable[[Tensor, Tensor], Tensor]


@register_measurement("paired", needs_network=False)
def measure_pairs(
    subject: Parts,
    *,
    pairs: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("ece", "nll"),
    resamples: int = 1_000,
) -> Iterator[Measurement]:
    """Measure the difference of two calibrators on the same test rows, with its 95% interval.

    The difference is the first less the second; errors are corrected for their bias, as
    `calibrant.compare` does. Of each metric there are ``METRIC``, ``METRIC:low`` and
    ``METRIC:high``, in the calibrator ``pair:FIRST:SECOND``.

    Args:
        subject: the run.
        pairs: two calibrators each, as a suite writes them; ``none`` is no calibrator.
        metrics: what is compared. Default: ece and nll.
        resamples: resamples of an interval. Default: 1,000.
    """
    test = subject.predictions("test")
    for first, second in pairs:
        a, b = (subject.calibrate(text, test) for text in (second, first))
        made = compare(a, b, metrics=tuple(metrics), resamples=resamples)
        for metric in metrics:
            difference = made[metric]
            for ending, value in (
                ("", difference.difference),
                (":low", difference.low),
                (":high", difference.high),
            ):
                yield Measurement("test", f"{PAIR}:{first}:{second}", metric + ending, value)


@register_measurement("optimiser", needs_network=False)
def measure_optimiser(
    subject: Parts,
    *,
    objectives: Sequence[str] = tuple(OBJECTIVES),
    by_class: Sequence[bool] = (False, True),
    every: int = 20,
) -> Iterator[Measurement]:
    """Measure temperatures epoch by epoch, fitted as class-scaling's section 5.2 prints.

    Its figure 4 shows these curves. Parts ``test@EPOCH`` in the calibrators
    ``optimiser:temperature:OBJECTIVE`` and ``optimiser:class_temperature:OBJECTIVE`` have total
    loss, spread of class-wise losses, accuracy and ECE; the last epoch is also in the part
    ``test``.

    Args:
        subject: the run.
        objectives: names in `OBJECTIVES`. Default: all.
        by_class: whether each class has a temperature; both by default.
        every: epochs between figures. Default: 20.
    """
    (fitting, fitting_labels), (logits, labels) = (
        (torch.as_tensor(part.array).double(), torch.as_tensor(part.labels).long())
        for part in map(subject.predictions, ("validation", "test"))
    )
    for name, each in itertools.product(objectives, by_class):
        if name not in OBJECTIVES:
            raise no_such("objective", name, OBJECTIVES)
        calibrator = "class_temperature" if each else "temperature"
        options: dict[str, float] = {}
        if name == "class_scaled":  # α and β are settled after the first step, then fixed
            text = f"{calibrator}(objective=class_scaled{',spread=None' * each})"
            facts = subject.fit(text).parameters()
            options = {side: facts[f"parameter:{side}"] for side in ("alpha", "beta")}
        path = fit_by_steps(fitting, fitting_labels, name, by_class=each, **options)
        parts = [(f"test@{epoch}", path[epoch]) for epoch in range(0, len(path), every)]
        for part, temperature in [*parts, ("test", path[-1])]:
            for metric, value in judge_temperature(logits, labels, temperature).items():
                yield Measurement(part, f"{OPTIMISER}:{calibrator}:{name}", metric, value)


@register_measurement("authors_code", needs_network=False)
def measure_authors_code(
    subject: Parts,
    *,
    calibrators: Sequence[str] = CALIBRATORS,
    objectives: Sequence[str] = tuple(OBJECTIVES),
    every: int = 20,
) -> Iterator[Measurement]:
    """Measure fits step by step, made as the authors' public code makes them (`fit_as_authors`).

    Class-scaling's figure 4 and table 2. Parts ``test@EVALUATION`` in the calibrators
    ``code:CALIBRATOR:OBJECTIVE`` have total loss, spread of class-wise losses, accuracy and ECE;
    the end is in the part ``test``, with the number of evaluations.

    Args:
        subject: the run.
        calibrators: names in `CALIBRATORS`. Default: all.
        objectives: names in `OBJECTIVES`. Default: all.
        every: evaluations of the objective between figures. Default: 20.
    """
    fitting, test = map(subject.predictions, ("validation", "test"))
    logits, labels = torch.as_tensor(test.array).float(), torch.as_tensor(test.labels).long()
    for calibrator, objective in itertools.product(calibrators, objectives):
        fitted = fit_as_authors(
            torch.as_tensor(fitting.array),
            torch.as_tensor(fitting.labels).long(),
            calibrator,
            objective,
        )
        name = f"{CODE}:{calibrator}:{objective}"
        last = len(fitted.states) - 1
        parts = [(f"test@{place}", place) for place in range(0, last, every)]
        for part, place in [*parts, ("test", last)]:
            for metric, value in judge_logits(fitted.scale(logits, place), labels).items():
                yield Measurement(part, name, metric, value)
        yield Measurement("test", name, "parameter:evaluations", float(last))


@register_measurement("hardest_classes", needs_network=False)
def measure_hardest_classes(
    subject: Parts, *, hardest: int = 3, steps: int = 300, every: int = 10, rate: float = 0.05
) -> Iterator[Measurement]:
    """Measure loss, spread and ECE of test rows while T is learnt on the hardest classes.

    Class-scaling figure 3; parts ``test@STEP``. The hardest classes, the temperatures, and the two
    steps with the same total loss (A and B in the figure) are found on validation rows alone. Of
    A and B, also give the figures of the step with more even class-wise losses and of the other.

    Args:
        subject: the run.
        hardest: how many classes. Default: 3 (class-scaling, figure 3).
        steps: steps of the descent. Default: 300.
        every: between the steps that are measured. Default: 10.
        rate: learning rate on ln T. Default: 0.05; the paper gives none.
    """
    rows = [
        (torch.as_tensor(part.array), torch.as_tensor(part.labels))
        for part in map(subject.predictions, ("validation", "test"))
    ]
    fitted = fit_hardest_classes(*rows[0], hardest=hardest, steps=steps, rate=rate)
    for step in range(0, steps + 1, every):
        for metric, value in judge_temperature(*rows[1], fitted.temperature[step]).items():
            yield Measurement(f"test@{step}", HARD, metric, value)
    same = fitted.find_same_loss()
    if same is not None:
        even, uneven = sorted(same, key=lambda step: float(fitted.spread[step]))
        for name, step in ((EVEN, even), (UNEVEN, uneven)):
            for metric, value in judge_temperature(*rows[1], fitted.temperature[step]).items():
                yield Measurement("test", name, metric, value)


def fit_by_steps(
    logits: Tensor,
    labels: Tensor,
    objective: str,
    *,
    by_class: bool = False,
    rates: Sequence[tuple[int, float]] | None = None,
    **options: Any,
) -> Numbers:
    """Fit T of z/T by L-BFGS, one step an epoch; return T before the first and after each.

    The result has a row an epoch, and a column for T or for the temperature of each class.

    L-BFGS without a line search multiplies its step by the learning rate, so that at rate r each
    epoch leaves about 1 − r of the way to the optimum.

    Args:
        logits: (N, K) logits.
        labels: (N,) labels.
        objective: a name in `OBJECTIVES`.
        by_class: whether each class has a temperature. Default: False.
        rates: epochs and learning rates. Default: None, those of `OBJECTIVES`.
        **options: ``alpha`` and ``beta`` of class_scaled.
    """
    loss = _get_loss(objective, **options)
    columns = int(logits.shape[1]) if by_class else 1
    temperature = torch.ones(columns, dtype=torch.float64, requires_grad=True)
    steps = [count for count, _ in rates or OBJECTIVES[objective]]
    speeds = [rate for _, rate in rates or OBJECTIVES[objective]]
    optimiser = torch.optim.LBFGS([temperature], lr=speeds[0], max_iter=1)
    path = [np.ones(columns)]

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(logits / temperature, labels)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    for count, speed in zip(steps, speeds, strict=True):
        optimiser.param_groups[0]["lr"] = speed
        for _ in range(count):
            optimiser.step(closure)  # type: ignore[no-untyped-call]
            path.append(temperature.detach().numpy().copy())
    return np.stack(path)


class AuthorsScaler(nn.Module):
    """A calibrator as the authors' public code has it.

    ``stages`` are the parameters that are fitted together, one stage after the other.

    Args:
        calibrator: a name in `CALIBRATORS`.
        classes: K.
        seed: of the weights of the parameterized temperature. Default: 1 (the authors' code).
    """

    def __init__(self, calibrator: str, classes: int, *, seed: int = 1) -> None:
        super().__init__()
        if calibrator not in CALIBRATORS:
            raise no_such("calibrator", calibrator, CALIBRATORS)
        self.calibrator, self.classes = calibrator, classes
        if calibrator == "parameterized_temperature":
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(seed)
                widths = (min(10, classes), 2, 2, 2, 2)
                layers: list[nn.Module] = []
                for wide, narrow in itertools.pairwise(widths):
                    layers += [nn.Linear(wide, narrow), nn.ReLU()]
                self.network = nn.Sequential(*layers, nn.Linear(2, 1))
            self.stages = [list(self.network.parameters())]
            return
        size = classes if calibrator == "class_temperature" else 1
        self.temperature = nn.Parameter(torch.ones(size))
        self.stages = [[self.temperature]]
        if calibrator == "ensemble_temperature":
            self.weights = nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))
            self.stages.append([self.weights])

    def forward(self, logits: Tensor) -> Tensor:
        """Compute calibrated logits; an ensemble mixes logits, as class-scaling's eq. 13 does."""
        if self.calibrator == "parameterized_temperature":
            largest = logits.detach().topk(min(10, self.classes), dim=1).values
            return logits / self.network(largest)  # type: ignore[no-any-return]
        scaled = logits / self.temperature
        if self.calibrator == "ensemble_temperature":
            first, second, third = self.weights
            return scaled * first + logits * second + third / self.classes
        return scaled


@dataclass(frozen=True)
class AuthorsFit:
    """Hold a scaler and its parameters at each evaluation of the objective, and at the end."""

    scaler: AuthorsScaler
    states: list[dict[str, Tensor]]

    def scale(self, logits: Tensor, place: int = -1) -> Tensor:
        """Compute calibrated logits with the parameters at an evaluation; by default, the end."""
        self.scaler.load_state_dict(self.states[place])
        with torch.no_grad():
            return self.scaler(logits)  # type: ignore[no-any-return]


def fit_as_authors(
    logits: Tensor,
    labels: Tensor,
    calibrator: str,
    objective: str,
    *,
    rates: Sequence[tuple[int, float]] | None = None,
    seed: int = 1,
) -> AuthorsFit:
    """Fit a calibrator as class-scaling's public code does, and keep every step.

    The code (github.com/SeungjinJung/SCTL) settles what section 5.2 leaves open, and departs from
    it in places: everything is in single precision; the epochs of L-BFGS are iterations of one
    call, which PyTorch ends earlier once the loss or the parameters move by less than 1e-9; each
    learning rate begins a new L-BFGS, without the curvature seen before; ETS fits T first, then
    three weights of the logits (eq. 13) with T held; PTS is trained by Adam, without weight decay.

    Args:
        logits: (N, K) logits.
        labels: (N,) labels.
        calibrator: a name in `CALIBRATORS`.
        objective: a name in `OBJECTIVES`.
        rates: iterations and learning rates. Default: None, those of `OBJECTIVES`.
        seed: see `AuthorsScaler`. Default: 1.
    """
    z, y = logits.float(), labels.long()
    scaler = AuthorsScaler(calibrator, int(z.shape[1]), seed=seed)
    loss = _SettlingLoss() if objective == "class_scaled" else _get_loss(objective)
    states: list[dict[str, Tensor]] = []

    def keep() -> None:
        states.append({name: value.clone() for name, value in scaler.state_dict().items()})

    for parameters in scaler.stages:
        for count, rate in rates or OBJECTIVES[objective]:
            by_adam = calibrator == "parameterized_temperature"
            optimiser: torch.optim.Optimizer = (
                torch.optim.Adam(parameters, lr=rate)
                if by_adam
                else torch.optim.LBFGS(parameters, lr=rate, max_iter=count)
            )

            def closure(optimiser: torch.optim.Optimizer = optimiser) -> Tensor:
                optimiser.zero_grad()
                keep()
                value = loss(scaler(z), y)
                value.backward()  # type: ignore[no-untyped-call]
                return value

            for _ in range(count if by_adam else 1):
                optimiser.step(closure)  # type: ignore[arg-type]
    keep()
    return AuthorsFit(scaler, states)


@dataclass(frozen=True)
class HardestClasses:
    """Hold the steps of a temperature fitted on the hardest classes alone."""

    chosen: tuple[int, ...]  # classes, hardest first
    temperature: Numbers
    total: Numbers  # mean loss of all rows
    by_class: Numbers  # mean loss of each class: (steps + 1, classes)
    spread: Numbers  # standard deviation over classes

    def find_same_loss(self) -> tuple[int, int] | None:
        """Find two steps, A and B, of nearly the same total loss and the most different spread.

        The loss falls, then rises when the other classes get worse. A is before the lowest point,
        B after it. Return None if the loss never rises.
        """
        low = int(np.argmin(self.total))
        before, after = np.arange(low), np.arange(low + 1, len(self.total))
        if not len(before) or not len(after):
            return None
        best: tuple[float, int, int] | None = None
        for a in before.tolist():
            b = int(after[np.argmin(np.abs(self.total[after] - self.total[a]))])
            if abs(self.total[b] - self.total[a]) > 0.02 * (
                self.total[a] - self.total[low] + 1e-12
            ):
                continue
            apart = abs(float(self.spread[a] - self.spread[b]))
            if best is None or apart > best[0]:
                best = (apart, a, b)
        return None if best is None else best[1:]


def fit_hardest_classes(
    logits: Tensor, labels: Tensor, *, hardest: int = 3, steps: int = 300, rate: float = 0.05
) -> HardestClasses:
    """Fit T of z/T on the rows of the hardest classes alone (class-scaling eq. 2, figure 3).

    The hardest classes have the largest mean cross-entropy at T = 1. The paper does not say which
    calibrator it fits; temperature is its only method with one parameter. Use gradient descent on
    ln T without momentum, which would overshoot.
    """
    z, count = logits.double(), int(logits.shape[1])
    if not 0 < hardest < count:
        raise InputError(f"hardest must be between 1 and {count - 1}, found {hardest}")
    classes = torch.unique(labels)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    chosen = average_class_losses(z, labels, classes).argsort(descending=True)[:hardest]
    rows = torch.isin(labels, classes[chosen])
    descent = torch.optim.SGD([log_t], lr=rate)
    records: list[tuple[float, float, Numbers]] = []
    for step in range(steps + 1):
        with torch.no_grad():
            scaled = z / log_t.exp()
            total = float(nn.functional.cross_entropy(scaled, labels))
            each = average_class_losses(scaled, labels, classes).numpy()
            records.append((float(log_t.exp()), total, each))
        if step < steps:
            descent.zero_grad()
            loss = nn.functional.cross_entropy(z[rows] / log_t.exp(), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
    by_class = np.stack([record[2] for record in records])
    return HardestClasses(
        tuple(classes[chosen].tolist()),
        np.array([record[0] for record in records]),
        np.array([record[1] for record in records]),
        by_class,
        by_class.std(1, ddof=1),
    )


def judge_temperature(
    logits: Tensor, labels: Tensor, temperature: Numbers | float
) -> dict[str, float]:
    """Compute total loss, spread of class-wise losses, accuracy and ECE of rows.

    Args:
        logits: (N, K) logits.
        labels: (N,) labels.
        temperature: what the logits are divided by: one number, or one for each class.
    """
    divisor = np.atleast_1d(np.asarray(temperature, dtype=np.float64))
    figures = judge_logits(logits.double() / torch.as_tensor(divisor), labels)
    return figures | ({"parameter:temperature": float(divisor[0])} if len(divisor) == 1 else {})


def judge_logits(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute total loss, spread of class-wise losses, accuracy and ECE of rows."""
    scaled = logits.double()
    by_class = average_class_losses(scaled, labels, torch.unique(labels))
    return {
        "nll": float(nn.functional.cross_entropy(scaled, labels)),
        "classwise_nll_std": float(by_class.std(unbiased=True)),
        "accuracy": float((scaled.argmax(1) == labels).double().mean()),
        "ece": float(ece(scaled, labels)),
    }


def average_class_losses(logits: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Average the cross-entropy of each class."""
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    return torch.stack([each[labels == label].mean() for label in classes])


def _get_loss(objective: str, *, alpha: float = 1.0, beta: float = 1.5) -> Loss:
    if objective == "nll":
        return nn.functional.cross_entropy
    if objective == "label_smoothing":
        return lambda logits, labels: nn.functional.cross_entropy(
            logits, labels, label_smoothing=0.05
        )
    if objective == "focal":
        return _compute_focal
    if objective == "class_scaled":
        return lambda logits, labels: _compute_class_scaled(logits, labels, alpha, beta)
    raise InputError(f"no loss for {objective}")


def _compute_focal(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute focal loss with γ = 3 and its weight held constant, as the authors' code does."""
    true = torch.log_softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
    return -((1 - true.detach().exp()) ** 3 * true).mean()


def _compute_class_scaled(logits: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
    """Compute Σ (1 + w_i) L_i (eq. 8), the weights from the class losses of this step (eq. 5)."""
    losses = average_class_losses(logits, labels, torch.unique(labels))
    normalised = ((losses - losses.mean()) / losses.std()).detach()
    return ((1 + beta * torch.sigmoid(normalised / alpha) - beta / 2) * losses).sum()


class _SettlingLoss:
    """Class-wise scaling that settles α and β at its second evaluation (class-scaling eq. 6)."""

    def __init__(self) -> None:
        self.alpha, self.beta = 1.0, 1.5
        self._before: Numbers | None = None  # class losses of the first evaluation
        self._settled = False

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        if not self._settled:
            with torch.no_grad():
                losses = average_class_losses(logits, labels, torch.unique(labels))
            after = losses.double().numpy()
            if self._before is None:
                self._before = after
            else:
                self._settle(self._before, after)
        return _compute_class_scaled(logits, labels, self.alpha, self.beta)

    def _settle(self, before: Numbers, after: Numbers) -> None:
        """Minimise √Σ (E_i − mean L¹)² with E_i = L⁰_i − w_i (L¹_i − L⁰_i), as printed."""
        from scipy.optimize import minimize
        from scipy.special import expit

        normalised = (after - after.mean()) / after.std(ddof=1)

        def spread(at: Numbers) -> float:
            weight = at[1] * expit(normalised / at[0]) - at[1] / 2
            return float(np.linalg.norm(before - weight * (after - before) - after.mean()))

        bounds = ((0.1, max(0.1, math.log(len(after)) / 2)), (1.5, 2.0))
        solution = minimize(spread, (self.alpha, self.beta), bounds=bounds, method="SLSQP")
        self.alpha, self.beta = map(float, solution.x)
        self._settled = True
