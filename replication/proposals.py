"""Find which paper proposes a combination of training and calibrator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.core.method_text import parse_terms


def find_proposer(settings: Mapping[str, Any], calibrator: str) -> str | None:
    """Find the paper that proposes a combination; None if it mixes methods of several papers.

    A paper's proposal is one of: its loss with the usual recipe and no calibrator
    (soft-calibration: also with its own temperature); mac-cal's head on cross-entropy;
    class-scaling's objective for any calibrator on cross-entropy.
    """
    losses = {name for _, name, _ in parse_terms(settings["loss"])}
    recipe = settings["recipe"]
    if settings["average"] != "none" or settings["cutout"]:
        return None
    if recipe in ("standard", "interleaved") and losses & {"s_avuc", "sb_ece"}:
        own = calibrator in ("none", "temperature", "temperature(objective=sb_ece)")
        return "soft-calibration" if own else None
    plain = losses == {"cross_entropy"}
    if plain and calibrator == "temperature(objective=sb_ece)" and recipe == "standard":
        return "soft-calibration"
    if plain and "objective=class_scaled" in calibrator and recipe == "standard":
        return "class-scaling"
    head = calibrator.partition("(")[0] == "mac_cal_head"
    if plain and (
        (recipe == "mac_cal" and calibrator == "none") or (recipe == "standard" and head)
    ):
        return "mac-cal"
    if recipe != "standard" or calibrator not in ("none", "temperature"):
        return None
    if losses & {"r_aurc", "acls"}:
        return "r-aurc" if "r_aurc" in losses else "acls"
    return None
