"""Losses to train with: each a module like `torch.nn.CrossEntropyLoss`, and its function.

``losses.get("focal+0.5*s_avuc")`` reads one from text, `compose` adds secondary losses to a
primary one, and `available` says when to use each. The function of each loss is
``losses.focal``, its class ``losses.Focal``.
"""

from __future__ import annotations

from calibrant.losses.acls import ACLS, acls
from calibrant.losses.avuc import AvUC, AvUCGS, SoftAvUC, avuc, avuc_gs, s_avuc
from calibrant.losses.base import Loss, PrimaryLoss, SecondaryLoss
from calibrant.losses.brier import Brier, brier
from calibrant.losses.common import Rows
from calibrant.losses.compose import Composed, compose
from calibrant.losses.confidence_penalty import ConfidencePenalty, confidence_penalty
from calibrant.losses.cpc import PairwiseConstraints, cpc
from calibrant.losses.crl import CorrectnessRanking, crl
from calibrant.losses.cross_entropy import CrossEntropy, cross_entropy
from calibrant.losses.dual_focal import DualFocal, dual_focal
from calibrant.losses.flsd import SampleDependentFocal, flsd
from calibrant.losses.focal import Focal, focal
from calibrant.losses.graphed import Graphed, graphed
from calibrant.losses.history import CorrectnessHistory
from calibrant.losses.inverse_focal import InverseFocal, inverse_focal
from calibrant.losses.kde_ece import KernelECE, kde_ece
from calibrant.losses.label_smoothing import LabelSmoothing, label_smoothing
from calibrant.losses.mbls import MarginLabelSmoothing, mbls
from calibrant.losses.mdca import MDCA, mdca
from calibrant.losses.mmce import MMCE, WeightedMMCE, mmce, mmce_weighted
from calibrant.losses.r_aurc import RegularizedAURC, r_aurc
from calibrant.losses.registry import available, get, make, parse, register
from calibrant.losses.sb_ece import SoftBinnedECE, sb_ece

__all__ = [
    "ACLS",
    "AvUC",
    "AvUCGS",
    "Brier",
    "Composed",
    "ConfidencePenalty",
    "CorrectnessHistory",
    "CorrectnessRanking",
    "CrossEntropy",
    "DualFocal",
    "Focal",
    "Graphed",
    "InverseFocal",
    "KernelECE",
    "LabelSmoothing",
    "Loss",
    "MDCA",
    "MMCE",
    "MarginLabelSmoothing",
    "PairwiseConstraints",
    "PrimaryLoss",
    "RegularizedAURC",
    "Rows",
    "SampleDependentFocal",
    "SecondaryLoss",
    "SoftAvUC",
    "SoftBinnedECE",
    "WeightedMMCE",
    "acls",
    "available",
    "avuc",
    "avuc_gs",
    "brier",
    "compose",
    "confidence_penalty",
    "cpc",
    "crl",
    "cross_entropy",
    "dual_focal",
    "flsd",
    "focal",
    "get",
    "graphed",
    "inverse_focal",
    "kde_ece",
    "label_smoothing",
    "make",
    "mbls",
    "mdca",
    "mmce",
    "mmce_weighted",
    "parse",
    "r_aurc",
    "register",
    "s_avuc",
    "sb_ece",
]
