"""Every loss by its canonical name, and the one place where a loss is read from text."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from torch import nn

from calibrant.functional.errors import InputError, no_such, wrong_options
from calibrant.losses.acls import ACLS
from calibrant.losses.avuc import AvUC, AvUCGS, SoftAvUC
from calibrant.losses.base import Loss, SecondaryLoss
from calibrant.losses.brier import Brier
from calibrant.losses.compose import compose
from calibrant.losses.confidence_penalty import ConfidencePenalty
from calibrant.losses.cpc import PairwiseConstraints
from calibrant.losses.crl import CorrectnessRanking
from calibrant.losses.cross_entropy import CrossEntropy
from calibrant.losses.dual_focal import DualFocal
from calibrant.losses.flsd import SampleDependentFocal
from calibrant.losses.focal import Focal
from calibrant.losses.inverse_focal import InverseFocal
from calibrant.losses.kde_ece import KernelECE
from calibrant.losses.label_smoothing import LabelSmoothing
from calibrant.losses.mbls import MarginLabelSmoothing
from calibrant.losses.mdca import MDCA
from calibrant.losses.mmce import MMCE, WeightedMMCE
from calibrant.losses.r_aurc import RegularizedAURC
from calibrant.losses.sb_ece import SoftBinnedECE

# Each class, and a line on when to use it.
_PRIMARY: dict[type[Loss], str] = {
    CrossEntropy: "the usual loss, to compare with",
    Brier: "bounded, so wrong labels pull less; a proper score",
    LabelSmoothing: "simple; curbs overconfidence",
    Focal: "cares less about rows that are certain; curbs overconfidence",
    SampleDependentFocal: "focal with a larger gamma where the label is least likely",
    InverseFocal: "cares more about rows that are certain; meant for class-wise ECE",
    DualFocal: "focal that also widens the gap to the next class; between it and cross_entropy",
    RegularizedAURC: "weighs rows by their confidence's rank; for class-wise ECE and selection",
}
_SECONDARY: dict[type[SecondaryLoss], str] = {
    SoftBinnedECE: "lowers a soft-binned ECE directly",
    AvUC: "for Bayesian networks; elsewhere avuc_gs or s_avuc serve better",
    AvUCGS: "certain where right, uncertain where wrong, by a threshold on the entropy",
    SoftAvUC: "the same without the threshold's edge; wants larger batches",
    MMCE: "a calibration error without bins, by a kernel",
    WeightedMMCE: "mmce where few rows are wrong, as late in training",
    MDCA: "calibrates every class, also rare ones, by its mean probability",
    ConfidencePenalty: "simple; pays for entropy, whatever is right",
    MarginLabelSmoothing: "label smoothing only where logits lie too far apart; cheap",
    ACLS: "mbls that pulls harder the further, and on the largest logit too; a good first try",
    PairwiseConstraints: "calibrates classes two by two; time grows with the classes squared",
    CorrectnessRanking: "ranks confidence by each sample's record, for selection; needs indices",
    KernelECE: "the error of whole probability vectors; give it a bandwidth, and large batches",
}
PRIMARY = {kind.name: kind for kind in _PRIMARY}
SECONDARY = {kind.name: kind for kind in _SECONDARY}
# Options of every part; num_samples, the size of the training set, is for those with memory.
SHARED = ("reduction", "ignore_index", "num_samples")
Term = tuple[float | None, str, dict[str, Any]]  # weight, name, options
_TERM = re.compile(
    r"^(?:(?P<beta>[^*()]+)\*\s*)?(?P<name>[A-Za-z_]\w*)\s*(?P<options>\(.*\))?$", re.S
)


def available() -> dict[str, str]:
    """Every loss's name and a line on when to use it."""
    return {kind.name: says for kind, says in (*_PRIMARY.items(), *_SECONDARY.items())}


def get(name: str, **options: Any) -> nn.Module:
    """A loss to train with, by name or by text such as ``focal(gamma=2)+0.5*s_avuc``.

    A secondary loss's name alone gives cross_entropy + β · it, β its default or ``beta=``;
    other options are its own. ``reduction``, ``ignore_index``, ``weight`` and ``num_samples``
    (for losses that remember the training samples) go where they belong.
    """
    if not isinstance(name, str):
        raise InputError(f"a loss is named by text such as 'acls', found {name!r}")
    text = name.strip()
    if text in SECONDARY:
        shared = {key: options[key] for key in (*SHARED, "weight") if key in options}
        own = {key: value for key, value in options.items() if key not in ("beta", "weight")}
        beta = options.get("beta", SECONDARY[text].beta)
        return compose(make("cross_entropy", **shared), (beta, make(text, **own)))
    if text in PRIMARY or not re.search(r"[+*(]", text):
        return make(text, **options)
    return parse(text, **options)


def make(name: str, **options: Any) -> Loss:
    """The bare loss, primary or secondary, by name."""
    kind = _find(name)
    memory = inspect.signature(kind).parameters.get("num_samples")
    if memory is None:
        options.pop("num_samples", None)
    elif memory.default is memory.empty and "num_samples" not in options:
        raise InputError(
            f"loss {name!r} remembers the training samples: give num_samples=, how many there are"
        )
    try:
        return kind(**options)
    except TypeError as error:
        shared = ("reduction", "ignore_index", *(("weight",) if name in PRIMARY else ()))
        raise wrong_options("loss", name, kind, error, *shared) from None


def parse(text: str, **options: Any) -> nn.Module:
    """A loss from ``primary + beta*secondary + ...``, each with options in parentheses.

    >>> parse("focal(gamma=2.0) + 0.5*sb_ece(num_bins=10)").betas
    (0.5,)
    """
    found = terms(text)
    for key in options:
        if key not in (*SHARED, "weight"):
            raise InputError(f"{text!r} takes its options inside, as in focal({key}=...)")
    shared = {key: options[key] for key in SHARED if key in options}
    weight = {key: options[key] for key in ("weight",) if key in options}
    (beta, name, own), *rest = found
    if name in SECONDARY:
        found.insert(0, (None, "cross_entropy", {}))
        (beta, name, own), *rest = found
    if beta is not None:
        raise InputError(f"the first loss takes no weight, found {beta:g}*{name} in {text!r}")
    primary = make(name, **shared, **weight, **own)
    added = [
        (SECONDARY[name].beta if beta is None else beta, make(name, **shared, **own))
        for beta, name, own in rest
        if _is_secondary(name, text)
    ]
    return compose(primary, *added) if added else primary


def terms(text: str) -> list[Term]:
    """Weight (None where none is said), name and options of each part.

    >>> terms("focal(gamma=3)+0.5*s_avuc")
    [(None, 'focal', {'gamma': 3}), (0.5, 's_avuc', {})]
    """
    return [_term(part, text) for part in _split(text)]


def _is_secondary(name: str, text: str) -> bool:
    if name not in SECONDARY:
        raise InputError(f"{name} is a primary loss and cannot be added to another, in {text!r}")
    return True


def _find(name: str) -> type[Loss]:
    known: dict[str, type[Loss]] = {**PRIMARY, **SECONDARY}
    if name in known:
        return known[name]
    raise no_such("loss", name, known)


def _split(text: str) -> list[str]:
    """The parts between the plus signs that stand outside parentheses and numbers."""
    parts, depth, begin = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        in_number = re.search(r"[\d.][eE]$", text[:place]) is not None
        if sign == "+" and depth == 0 and not in_number:
            parts.append(text[begin:place])
            begin = place + 1
    return [*parts, text[begin:]]


def _term(part: str, text: str) -> Term:
    found = _TERM.match(part.strip())
    if found is None:
        raise InputError(
            f"{part.strip()!r} in {text!r} is not a loss; write primary+beta*secondary, as in "
            "focal(gamma=2)+0.5*sb_ece"
        )
    name = found["name"]
    _find(name)
    beta: float | None = None
    if found["beta"] is not None:
        try:
            beta = float(found["beta"])
        except ValueError:
            raise InputError(
                f"the weight of {name} must be a number, found {found['beta']!r} in {text!r}"
            ) from None
    return beta, name, _options(found["options"], text)


def _options(written: str | None, text: str) -> dict[str, Any]:
    """Options in parentheses, literal values only: nothing is run."""
    if not written:
        return {}
    try:
        call = ast.parse(f"f{written}", mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)  # f(...)(...) calls what f(...) gives
        assert not call.args
        names = [keyword.arg for keyword in call.keywords]
        assert all(names)
        assert len(set(names)) == len(names)
        return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise InputError(
            f"options are written once, (name=value, ...), with plain values, found {written!r} "
            f"in {text!r}"
        ) from None
