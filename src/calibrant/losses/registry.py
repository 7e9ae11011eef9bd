"""Losses by name and by text, such as ``focal(gamma=2)+0.5*s_avuc``."""

from __future__ import annotations

import inspect
import re
from typing import Any, TypeVar

from torch import nn

from calibrant.core.errors import InputError
from calibrant.core.method_text import Term, parse_terms
from calibrant.core.registry import Registry, check_subclass
from calibrant.losses.base import Loss, SecondaryLoss
from calibrant.losses.compose import compose

L = TypeVar("L", bound=type[Loss])
_AT = "calibrant.losses"
LOSSES: Registry[type[Loss]] = Registry(
    "loss",
    {
        # Primary losses: one value a sample.
        "cross_entropy": (f"{_AT}.cross_entropy:CrossEntropy", "the usual loss, to compare with"),
        "brier": (f"{_AT}.brier:Brier", "bounded, so wrong labels pull less; a proper score"),
        "label_smoothing": (
            f"{_AT}.label_smoothing:LabelSmoothing",
            "simple; reduces overconfidence",
        ),
        "focal": (
            f"{_AT}.focal:Focal",
            "gives certain rows less weight; reduces overconfidence",
        ),
        "flsd": (
            f"{_AT}.flsd:SampleDependentFocal",
            "focal with a larger gamma where the label is least likely",
        ),
        "inverse_focal": (
            f"{_AT}.inverse_focal:InverseFocal",
            "gives certain rows more weight; meant for class-wise ECE",
        ),
        "dual_focal": (
            f"{_AT}.dual_focal:DualFocal",
            "focal that also widens the gap to the next class",
        ),
        "r_aurc": (
            f"{_AT}.r_aurc:RegularizedAURC",
            "weights rows by the rank of their confidence; for class-wise ECE and selection",
        ),
        # Secondary losses: one value a batch, added to a primary loss.
        "sb_ece": (f"{_AT}.sb_ece:SoftBinnedECE", "lowers a soft-binned ECE directly"),
        "avuc": (f"{_AT}.avuc:AvUC", "for Bayesian networks; elsewhere use avuc_gs or s_avuc"),
        "avuc_gs": (
            f"{_AT}.avuc:AvUCGS",
            "certain where right, uncertain where wrong, by a threshold on the entropy",
        ),
        "s_avuc": (
            f"{_AT}.avuc:SoftAvUC",
            "avuc_gs with a soft threshold; needs larger batches",
        ),
        "mmce": (f"{_AT}.mmce:MMCE", "a calibration error without bins, by a kernel"),
        "mmce_weighted": (
            f"{_AT}.mmce:WeightedMMCE",
            "mmce where few rows are wrong, as late in training",
        ),
        "mdca": (
            f"{_AT}.mdca:MDCA",
            "calibrates the mean probability of every class, also of rare ones",
        ),
        "confidence_penalty": (
            f"{_AT}.confidence_penalty:ConfidencePenalty",
            "simple; rewards entropy on every row",
        ),
        "mbls": (
            f"{_AT}.mbls:MarginLabelSmoothing",
            "label smoothing only where logits lie too far apart; cheap",
        ),
        "acls": (
            f"{_AT}.acls:ACLS",
            "like MbLS, with a penalty that grows with the violation; a good first try",
        ),
        "cpc": (
            f"{_AT}.cpc:PairwiseConstraints",
            "calibrates classes in pairs; time grows with the classes squared",
        ),
        "crl": (
            f"{_AT}.crl:CorrectnessRanking",
            "ranks confidence by each sample's history, for selection; needs indices",
        ),
        "kde_ece": (
            f"{_AT}.kde_ece:KernelECE",
            "the error of whole probability vectors; needs a bandwidth and large batches",
        ),
    },
    check=check_subclass("loss", f"{_AT}.base:Loss"),
)
# Options of every part; num_samples, the size of the training set, is for those with memory.
_SHARED = ("reduction", "ignore_index", "num_samples")


def available() -> dict[str, str]:
    """Return every loss's name with a line on when to use it."""
    return LOSSES.available()


def register(loss: L) -> L:
    """Register a loss of your own under its ``name``; a class decorator.

    Args:
        loss: A subclass of `PrimaryLoss` or `SecondaryLoss`.
    """
    LOSSES.register(loss)
    return loss


def get(name: str, **options: Any) -> nn.Module:
    """Make a loss to train with, from a name or a text such as ``focal(gamma=2)+0.5*s_avuc``.

    The name of a secondary loss alone gives cross_entropy + β · that loss.

    Args:
        name: A name, or a text.
        options: Options of the loss named. ``beta`` is the weight of a secondary loss;
            ``reduction``, ``ignore_index``, ``weight`` and ``num_samples`` (for losses that
            remember the training samples) go to the parts that take them.
    """
    if not isinstance(name, str):
        raise InputError(f"a loss is named by text such as 'acls', found {name!r}")
    text = name.strip()
    if text in LOSSES and is_secondary(text):
        shared = {key: options[key] for key in (*_SHARED, "weight") if key in options}
        loss_options = {
            key: value for key, value in options.items() if key not in ("beta", "weight")
        }
        beta = options.get("beta", _default_weight(text))
        return compose(make("cross_entropy", **shared), (beta, make(text, **loss_options)))
    if text in LOSSES or not re.search(r"[+*(]", text):
        return make(text, **options)
    return parse(text, **options)


def make(name: str, **options: Any) -> Loss:
    """Make a bare loss, primary or secondary, by name.

    Args:
        name: The name of the loss.
        options: Its options.
    """
    loss = LOSSES.load(name)
    memory = inspect.signature(loss).parameters.get("num_samples")
    if memory is None:
        options.pop("num_samples", None)
    elif memory.default is memory.empty and "num_samples" not in options:
        raise InputError(
            f"loss {name!r} remembers the training samples: give num_samples=, how many there are"
        )
    shared = ("reduction", "ignore_index", *(() if is_secondary(name) else ("weight",)))
    created: Loss = LOSSES.create(name, shared=shared, **options)
    return created


def parse(text: str, **options: Any) -> nn.Module:
    """Make a loss from ``primary + beta*secondary + ...``, each with options in parentheses.

    >>> parse("focal(gamma=2.0) + 0.5*sb_ece(num_bins=10)").betas
    (0.5,)

    Args:
        text: The text.
        options: ``reduction``, ``ignore_index``, ``weight`` and ``num_samples``, as in `get`.
    """
    for key in options:
        if key not in (*_SHARED, "weight"):
            raise InputError(f"{text!r} takes its options inside, as in focal({key}=...)")
    shared = {key: options[key] for key in _SHARED if key in options}
    weight = {key: options[key] for key in ("weight",) if key in options}
    terms = parse_terms(text)
    for term in terms:
        LOSSES.load(term.name)
    if is_secondary(terms[0].name):
        terms.insert(0, Term(None, "cross_entropy", {}))
    first, *rest = terms
    if first.weight is not None:
        raise InputError(
            f"the first loss takes no weight, found {first.weight:g}*{first.name} in {text!r}"
        )
    for term in rest:
        if not is_secondary(term.name):
            raise InputError(
                f"{term.name} is a primary loss and cannot be added to another, in {text!r}"
            )
    primary = make(first.name, **shared, **weight, **first.options)
    added = [
        (
            _default_weight(term.name) if term.weight is None else term.weight,
            make(term.name, **shared, **term.options),
        )
        for term in rest
    ]
    return compose(primary, *added) if added else primary


def is_secondary(name: str) -> bool:
    """Say whether the loss called ``name`` is a secondary one."""
    return issubclass(LOSSES.load(name), SecondaryLoss)


def _default_weight(name: str) -> float:
    loss = LOSSES.load(name)
    assert issubclass(loss, SecondaryLoss)
    return loss.beta
