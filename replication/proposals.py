"""What each of the five papers proposes, among combinations of training and calibrator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.core.method_text import parse_terms


def proposed_by(settings: Mapping[str, Any], calibrator: str) -> str | None:
    """The paper a combination is a proposal of, alone: not on top of another's.

    Its losses with the usual recipe and no calibrator (soft-calibration's also with its own
    temperature), mac-cal's head on plain cross-entropy, class-scaling's objective of any
    calibrator on plain cross-entropy.
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
