"""Second stages on frozen features: MaC-Cal, TST and VTST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from calibrant.calibrators.feature_head import FeatureHead
from calibrant.calibrators.mac_cal_head import MacCalHead
from calibrant.calibrators.tst_head import TSTHead
from calibrant.calibrators.vtst_head import VTSTHead
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.training.job import Job


class MacCal(Recipe):
    """MaC-Cal: train as usual, then retrain the head under masks on features computed once.

    Options are those of `calibrant.calibrators.mac_cal_head.MacCalHead`, its ablation
    switches among them; γ is chosen on the validation rows unless it is given.
    """

    name = "mac_cal"
    dense = False
    kind: ClassVar[type[FeatureHead]] = MacCalHead

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.kind(**options)  # refuses bad options now
        self.options = options

    def prepare(self, job: Job) -> None:
        """See now that there is a classifier to replace."""
        job.split()

    def finish(self, job: Job) -> dict[str, float]:
        """Stage two, in the classifier's place."""
        given = {"seed": job.config.seed, "num_classes": job.num_classes, **self.options}
        head = self.kind(**given)
        features, labels = job.features(job.train)
        held = None
        chooses = isinstance(head, MacCalHead) and head.gamma is None
        if chooses and job.validation is not None and len(job.validation):  # type: ignore[arg-type]
            held = job.features(job.validation)
        head.fit(features, labels, validation=held)
        job.replace_head(head.to(job.device))
        return {
            key: float(value)
            for key, value in head.summary_.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }


class TST(MacCal):
    """Two-stage training: freeze the extractor, retrain a fresh head; options of `TSTHead`."""

    name = "tst"
    kind = TSTHead


class VTST(MacCal):
    """Variational two-stage training; options are those of `VTSTHead`."""

    name = "vtst"
    kind = VTSTHead
