"""Recipes with a second stage on frozen features: MaC-Cal, TST and VTST."""

from __future__ import annotations

from typing import Any, ClassVar

from calibrant.calibrators.heads.base import FeatureHead
from calibrant.calibrators.heads.mac_cal_head import MacCalHead
from calibrant.calibrators.heads.tst_head import TSTHead
from calibrant.calibrators.heads.vtst_head import VTSTHead
from calibrant.core.errors import wrong_options
from calibrant.training.recipes.base import Job, Recipe


class MacCal(Recipe):
    """Train as usual, then retrain the head under masks on features computed once (MaC-Cal).

    γ is chosen on the validation rows unless it is given. ``seed`` and ``num_classes`` are
    those of the run unless they are given.

    Args:
        options: The options of `MacCalHead`, its ablation switches among them; see it for their
            defaults.
    """

    name = "mac_cal"
    dense = False
    kind: ClassVar[type[FeatureHead]] = MacCalHead

    def __init__(self, **options: Any) -> None:
        super().__init__()
        try:
            self.kind(**options)  # refuse bad options before training
        except TypeError as error:
            raise wrong_options("recipe", self.name, self.kind, error) from None
        self.options = options

    def prepare(self, job: Job) -> None:
        """Check before training that there is a classifier to replace, or to begin from."""
        classifier = job.split().head
        if self.options.get("start") == "trained":
            MacCalHead(**self.options).begin_from(classifier)

    def finish(self, job: Job) -> dict[str, float]:
        """Train the new head and replace the classifier by it."""
        options = {"seed": job.config.seed, "num_classes": job.num_classes, **self.options}
        head = self.kind(**options)
        if isinstance(head, MacCalHead) and head.start == "trained":
            head.begin_from(job.split().head)
        features, labels = job.features(job.train)
        validation = None
        chooses = isinstance(head, MacCalHead) and head.gamma is None
        if chooses and job.validation is not None and job.has_validation:
            validation = job.features(job.validation)
        head.fit(features, labels, validation=validation)
        job.replace_head(head.to(job.device))
        return {
            key: float(value)
            for key, value in head.summary_.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }


class TST(MacCal):
    """Freeze the extractor and retrain a fresh head (two-stage training).

    Args:
        options: The options of `TSTHead`; see it for their defaults.
    """

    name = "tst"
    kind = TSTHead


class VTST(MacCal):
    """Freeze the extractor and train a variational head (variational two-stage training).

    Args:
        options: The options of `VTSTHead`; see it for their defaults.
    """

    name = "vtst"
    kind = VTSTHead
