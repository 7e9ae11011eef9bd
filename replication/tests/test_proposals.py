"""What each paper proposes among combinations, and the best of ours beside it."""

from __future__ import annotations

from functools import partial

import pandas as pd
import pytest

from calibrant.bench import describe_choice
from replication.proposals import find_proposer
from replication.readme_numbers import RIVALS

describe = partial(describe_choice, rivals=RIVALS)


def test_the_verdict_is_against_every_paper():
    def frame(*eces):
        rows = [("chosen", "mmce", "none"), ("cross_entropy", "cross_entropy", "none")]
        rows += [("acls", "acls", "none"), ("soft-calibration", "focal+s_avuc", "temperature")]
        same = {"recipe": "standard", "average": "none", "ece_error": 0.0002}
        return pd.DataFrame(
            {"who": who, "loss": loss, "calibrator": after, "ece": ece, **same}
            for (who, loss, after), ece in zip(rows, eces, strict=False)
        )

    verdict = describe(frame(0.004, 0.03, 0.02, 0.005))
    assert "0.40%, is below that of every method" in verdict
    assert "soft-calibration's focal+s_avuc, then temperature has the lowest, 0.50%" in verdict
    assert verdict.startswith("Chosen: mmce. ")
    assert "0.50%; the seeds tell the two apart." in verdict
    near = frame(0.0045, 0.03, 0.02, 0.005).assign(recipe="deep_ensemble", average="ema")
    assert describe(near).startswith("Chosen: mmce, deep_ensemble, ema. ")
    assert "; the seeds do not tell them apart." in describe(near)
    single = frame(0.004, 0.03, 0.02, 0.005).assign(ece_error=float("nan"))  # of one seed
    assert "seeds" not in describe(single)
    assert "is not below" in describe(frame(0.006, 0.03, 0.02, 0.005))
    assert "No method of the five papers" in describe(frame(0.006, 0.03))
    assert "by chance" not in verdict
    floor = frame(0.004, 0.03, 0.02, 0.005).assign(chance_ece=0.0048)
    assert describe(floor).endswith("it would show 0.48% on average, by chance.")


@pytest.mark.parametrize(
    ("loss", "recipe", "calibrator", "paper"),
    [
        ("r_aurc(csf='msp')", "standard", "none", "r-aurc"),
        ("acls(margin=6)", "standard", "temperature", "acls"),
        ("acls(margin=6)", "mixup", "none", None),
        ("focal+s_avuc", "standard", "none", "soft-calibration"),
        ("s_avuc", "interleaved", "temperature(objective=sb_ece)", "soft-calibration"),
        ("cross_entropy", "standard", "temperature(objective=sb_ece)", "soft-calibration"),
        ("cross_entropy", "mac_cal", "none", "mac-cal"),
        ("cross_entropy", "standard", "mac_cal_head", "mac-cal"),
        ("focal", "standard", "mac_cal_head", None),
        ("cross_entropy", "standard", "temperature(objective=class_scaled)", "class-scaling"),
        ("cross_entropy", "standard", "temperature", None),
    ],
)
def test_whose_proposal_a_combination_is(loss, recipe, calibrator, paper):
    settings = {"loss": loss, "recipe": recipe, "average": "none", "cutout": 0}
    assert find_proposer(settings, calibrator) == paper
