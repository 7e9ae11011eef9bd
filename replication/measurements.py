"""Measure trained networks as the papers do; suites load this file as a plugin."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import calibrators, losses
from calibrant.bench import FilesGone, Measurement, Parts, Subject, register_measurement
from calibrant.core.errors import InputError
from calibrant.losses import ACLS
from calibrant.losses.common import rows_of
from calibrant.training.optimizer import learning_rate, make_optimizer

# In the calibrator column: ``masked``, ``masked:30``, ``head``, ``step:cross_entropy``.
MASKED, INACTIVE, HEAD, STEP = "masked", "regulariser", "head", "step"
BINS, HIGHEST = 20, 0.1  # as in acls figure 3
EMBEDDED = 500  # test rows in a picture of t-SNE


@register_measurement("masked")
def measure_masked(
    subject: Subject,
    *,
    ratios: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    draws: int = 5,
    precision: str = "fp32",
) -> Iterator[Measurement]:
    """Measure accuracy and confidence with a share of the classifier's weights masked.

    mac-cal figure 1; parts ``test@PERCENT``.
    """
    network = subject.network(precision)
    weight, bias = _read_classifier(network.split().head)
    assert network.test is not None  # every run has test rows
    features, labels = network.features(network.test)
    figures = infer_masked(features.float(), labels, weight, bias, ratios=ratios, draws=draws)
    for ratio, (accuracy, confidence) in figures.items():
        part = f"test@{round(100 * ratio)}"
        yield Measurement(part, MASKED, "accuracy", accuracy)
        yield Measurement(part, MASKED, "confidence", confidence)


@register_measurement("inactive")
def measure_inactive(subject: Subject) -> Iterator[Measurement]:
    """Measure ACLS's regulariser, and how often it is 0, on training rows.

    acls figure 3. Use the trained network, in batches as in training; a ranking loss also uses its
    counts of each row. Parts ``train@BIN``: twenty bins of 0.005, the last with all larger values.
    """
    run, config = subject.run, subject.config
    loss = subject.network().loss
    term = next((module for module in loss.modules() if isinstance(module, ACLS)), None)
    if term is None:
        raise InputError(f"inactive needs the loss acls, found {config.loss}")
    if term.history is not None and not bool(term.history.counts.any()):
        raise FilesGone(f"{run.folder}: the loss's counts of each row were not kept")
    predictions = subject.predictions("train")
    logits, labels = torch.as_tensor(predictions.array), torch.as_tensor(predictions.labels)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(config.seed))
    batches = torch.split(shuffled, config.batch_size)
    values = torch.cat([_compute_regulariser(term, logits, labels, rows) for rows in batches])
    yield Measurement("train", "none", "inactive", float((values == 0).double().mean()))
    places = (values.clamp(0, HIGHEST) * (BINS / HIGHEST)).long().clamp_max(BINS - 1)
    for place, share in enumerate((torch.bincount(places, minlength=BINS) / len(values)).tolist()):
        yield Measurement(f"train@{place}", INACTIVE, "share", share)


@register_measurement("flsd_gamma", needs_network=False)
def measure_flsd_gamma(
    subject: Parts, *, threshold: float = 0.2, parts: Sequence[str] = ("train", "validation")
) -> Iterator[Measurement]:
    """Measure the share of rows on which FLSD has a gamma of 3 (acls supplement, S1.1).

    ``flsd_gamma_3`` takes the probability of the true class, as FLSD does, and
    ``flsd_gamma_3:predicted`` the largest one, as the supplement's (1) prints.

    Args:
        subject: the run, which need not be trained with FLSD.
        threshold: the probability from which gamma is 3. Default: 0.2 (acls, supplement (1)).
        parts: the rows. Default: training and validation rows.
    """
    for part in (name for name in parts if name in subject.parts):
        rows = subject.predictions(part)
        p = torch.softmax(torch.as_tensor(rows.array).double(), 1)
        own = p.gather(1, torch.as_tensor(rows.labels).long().unsqueeze(1)).squeeze(1)
        for ending, chosen in (("", own), (":predicted", p.amax(1))):
            share = float((chosen >= threshold).double().mean())
            yield Measurement(part, "none", f"flsd_gamma_3{ending}", share, rows=len(p))


@register_measurement("flipped")
def measure_flipped(subject: Subject) -> Iterator[Measurement]:
    """Measure how many predictions a step of training changes (acls, limitation in section 4.3).

    The last epoch is trained once more on a copy of the network, with its learning rates, shuffled
    and augmented as in training. Each batch is predicted before and after its step: ``flipped`` is
    the share of rows whose predicted class changes, ``unlearned`` the share that was right and no
    longer is. The calibrator ``step:cross_entropy`` has the same with cross-entropy in place of
    the run's loss, from the same weights: what a regulariser adds is the difference. Steps are in
    single precision, and momentum begins at 0.
    """
    for name, plain in (("none", False), (f"{STEP}:cross_entropy", True)):
        if plain and subject.config.loss == "cross_entropy":
            return
        for metric, share in train_once_more(subject.network(), plain=plain).items():
            yield Measurement("train", name, metric, share)


@register_measurement("confidences")
def measure_confidences(
    subject: Subject,
    *,
    ratios: Sequence[float] = (0.3, 0.6, 0.9),
    heads: Sequence[Mapping[str, Any]] = ({},),
    draws: int = 5,
    precision: str = "fp32",
) -> Iterator[Measurement]:
    """Measure how the confidences of test rows are spread (mac-cal figure 1a).

    Parts ``test@BIN``, twenty bins of equal width, in the calibrators ``none``, ``masked:PERCENT``
    (the classifier masked as by `infer_masked`) and ``head``, ``head:2``, ... (`MacCalHead`).

    Args:
        subject: the run.
        ratios: shares of the classifier's weights that are masked. Default: 0.3, 0.6 and 0.9.
        heads: options of second stages, as of ``mac_cal_head``. Default: one, with its defaults.
        draws: masks of each ratio. Default: 5.
        precision: of the network. Default: fp32.
    """
    network = subject.network(precision)
    weight, bias = _read_classifier(network.split().head)
    assert network.test is not None  # every run has test rows
    features = network.features(network.test)[0].float()
    logits = {"none": features @ weight + bias}
    for ratio in ratios:
        masked = list(draw_masked(weight, ratio, draws=draws))
        logits[f"{MASKED}:{round(100 * ratio)}"] = torch.cat(
            [features @ kept + bias for kept in masked]
        )
    for name, head in _train_heads(subject, network, heads):
        logits[name] = torch.as_tensor(head(features))
    for name, z in logits.items():
        sure = torch.softmax(z.double(), 1).amax(1)
        places = (sure * BINS).long().clamp_max(BINS - 1)
        shares = torch.bincount(places, minlength=BINS) / len(places)
        for place, share in enumerate(shares.tolist()):
            yield Measurement(f"test@{place}", name, "share", share)


@register_measurement("geometry")
def measure_geometry(
    subject: Subject,
    *,
    heads: Sequence[Mapping[str, Any]] = ({},),
    rows: int = EMBEDDED,
    precision: str = "fp32",
) -> Iterator[Measurement]:
    """Measure angles of class weights and class means, and embed logits (mac-cal figure 2).

    In the calibrators ``none`` and ``head``, ``head:2``, ...: ``angle:weights`` in degrees between
    the weights of each two classes and ``angle:features`` between the mean inputs of the last layer
    of their test rows, less the mean of all; in parts ``test@PLACE``, row and column of the matrix
    as K·i + j, with their mean and standard deviation over i < j in the part ``test``. ``tsne:x``,
    ``tsne:y``, ``tsne:label`` and ``tsne:entropy`` in parts ``test@ROW`` are t-SNE of the logits
    of the first test rows, with entropies divided by ln K.

    Args:
        subject: the run.
        heads: options of second stages, as of ``mac_cal_head``. Default: one, with its defaults.
        rows: rows that are embedded. Default: 500 (ours; the paper does not say).
        precision: of the network. Default: fp32.
    """
    network = subject.network(precision)
    weight, bias = _read_classifier(network.split().head)
    assert network.test is not None
    inputs, labels = network.features(network.test)
    features = inputs.float()
    views = {"none": (weight, features, features @ weight + bias)}
    for name, head in _train_heads(subject, network, heads):
        hidden = features
        if head.hidden_weight_.numel():
            hidden = torch.relu(features @ head.hidden_weight_ + head.hidden_bias_)
        views[name] = (head.weight_, hidden, torch.as_tensor(head(features)))
    for name, (prototypes, hidden, logits) in views.items():
        means = average_rows(hidden, labels, prototypes.shape[1])
        for what, vectors in (("weights", prototypes.T), ("features", means - means.mean(0))):
            yield from _list_angles(name, what, compute_angles(vectors))
        yield from _list_embedding(name, logits[:rows], labels[:rows], subject.config.seed)


def compute_angles(vectors: Tensor) -> Tensor:
    """Compute the angles between each two vectors, in degrees.

    >>> compute_angles(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))[0].tolist()
    [0.0, 90.0, 180.0]
    """
    unit = nn.functional.normalize(vectors.double(), dim=1)
    angles = torch.rad2deg(torch.acos((unit @ unit.T).clamp(-1, 1)))
    return angles.fill_diagonal_(0.0)


def average_rows(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Average the rows of each class."""
    total = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    total.index_add_(0, labels, features.double())
    counts = torch.bincount(labels, minlength=classes).clamp_min(1)
    return total / counts.unsqueeze(1)


def _list_angles(name: str, what: str, angles: Tensor) -> Iterator[Measurement]:
    classes = len(angles)
    above = angles[tuple(torch.triu_indices(classes, classes, 1))]
    yield Measurement("test", name, f"angle:{what}", float(above.mean()))
    yield Measurement("test", name, f"angle:{what}:sd", float(above.std()))
    if classes <= 20:  # more are too many to draw
        for place, angle in enumerate(angles.flatten().tolist()):
            yield Measurement(f"test@{place}", name, f"angle:{what}", angle)


def _list_embedding(name: str, logits: Tensor, labels: Tensor, seed: int) -> Iterator[Measurement]:
    from sklearn.manifold import TSNE

    p = torch.softmax(logits.double(), 1)
    entropy = torch.special.entr(p).sum(1) / math.log(p.shape[1])
    places = TSNE(
        init="pca", random_state=seed, perplexity=min(30.0, (len(p) - 1) / 3)
    ).fit_transform(logits.cpu().numpy())
    for row, (x, y) in enumerate(places.tolist()):
        for metric, value in (
            ("x", x),
            ("y", y),
            ("label", float(labels[row])),
            ("entropy", float(entropy[row])),
        ):
            yield Measurement(f"test@{row}", name, f"tsne:{metric}", value)


def _read_classifier(head: nn.Module) -> tuple[Tensor, Tensor]:
    """Return a linear classifier's weight (D,K) and bias."""
    if not isinstance(head, nn.Linear):
        raise InputError(f"masks need a linear classifier, found {type(head).__name__}")
    bias = torch.zeros(head.out_features, device=head.weight.device)
    own = bias if head.bias is None else head.bias.detach().float()
    return head.weight.detach().float().T, own


def _train_heads(
    subject: Subject, network: Any, heads: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Train MaC-Cal's second stages on the run's features, as its recipe does."""
    for place, options in enumerate(heads, start=1):
        usual = {"seed": subject.config.seed, "num_classes": network.num_classes}
        head = calibrators.get("mac_cal_head", **{**usual, **options})
        if options.get("start") == "trained":
            head.begin_from(network.split().head)
        held = None
        if options.get("gamma") is None and network.has_validation:
            held = network.features(network.validation)
        head.fit(*network.features(network.train), validation=held)
        yield (HEAD if place == 1 else f"{HEAD}:{place}"), head


def train_once_more(job: Any, *, plain: bool = False) -> dict[str, float]:
    """Train the last epoch of a job again on copies, and compute how many predictions flip.

    Args:
        job: a trained network, as `Subject.network` gives it. It stays as it is.
        plain: whether to step down cross-entropy in place of the job's loss. Default: False.
    """
    config = job.config
    network = copy.deepcopy(job.network).train()
    loss = losses.get("cross_entropy") if plain else copy.deepcopy(job.loss)
    optimiser = make_optimizer(config, network.parameters())
    # A copy that draws the batches of the last epoch.
    again = dataclasses.replace(job, train=job.train.to(job.device), epoch=config.epochs - 1)
    batches = again.batches()
    counts = torch.zeros(3, dtype=torch.float64)
    for step, batch in enumerate(batches):
        rate = learning_rate(config, again.epoch * len(batches) + step, len(batches))
        for group in optimiser.param_groups:
            group["lr"] = rate
        logits = network(batch.inputs)
        extra = {"index": batch.index} if getattr(loss, "needs_index", False) else {}
        optimiser.zero_grad()
        loss(logits, batch.target, **extra).backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), config.clip)
        optimiser.step()
        with torch.no_grad():
            before, after = logits.argmax(1), network(batch.inputs).argmax(1)
        flips = before != after
        lost = flips & (before == batch.target)
        counts += torch.tensor([len(flips), int(flips.sum()), int(lost.sum())])
    rows, flipped, lost_rows = counts.tolist()
    return {"flipped": flipped / rows, "unlearned": lost_rows / rows}


def _compute_regulariser(term: ACLS, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Compute each row's term of eq. 13."""
    right = seen = None
    if term.history is not None:
        right, seen = (
            counts.cpu() for counts in term.history.of(rows.to(term.history.counts.device))
        )
    return term.penalties(rows_of(logits[rows], labels[rows]), right, seen)


def infer_masked(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    ratios: Sequence[float],
    draws: int = 5,
    seed: int = 0,
) -> dict[float, tuple[float, float]]:
    """Compute accuracy and mean confidence of a linear classifier with masked weights.

    mac-cal figure 1 (b) and (c): draw ``draws`` masks of the (D,K) weights for each ratio, without
    rescaling or other changes to the network.
    """
    generator = torch.Generator().manual_seed(seed)
    figures = {}
    for ratio in ratios:
        right, sure = [], []
        for masked in draw_masked(weight, ratio, draws=draws, generator=generator):
            p = torch.softmax((features @ masked + bias).double(), 1)
            best, predicted = p.max(1)
            right.append(float((predicted == labels).double().mean()))
            sure.append(float(best.mean()))
        figures[ratio] = (math.fsum(right) / draws, math.fsum(sure) / draws)
    return figures


def draw_masked(
    weight: Tensor, ratio: float, *, draws: int, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Give weights with a share of them masked at random, drawn several times."""
    if not 0 <= ratio <= 1:
        raise InputError(f"a masked share must lie in [0, 1], found {ratio!r}")
    generator = generator or torch.Generator().manual_seed(0)
    for _ in range(draws):
        kept = torch.rand(weight.shape, generator=generator).to(weight.device) >= ratio
        yield weight * kept
