"""Under shift: corrupted test images, calibrators fitted on clean validation rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from calibrant.bench import texts
from calibrant.bench.judging import SHORT, Figure, checked, counted, figures, told
from calibrant.bench.stage_two import answers, is_head, spelled
from calibrant.bench.subject import Subject
from calibrant.data.corruptions import KINDS, SEVERITIES, corrupt
from calibrant.functional.errors import InputError, no_such

METRICS = (*SHORT, "aurc")


def shift(
    subject: Subject,
    *,
    kinds: Sequence[str] = KINDS,
    severities: Sequence[int] = SEVERITIES,
    calibrators: Sequence[str] = (),
    metrics: Sequence[str] = METRICS,
    seed: int = 0,
    precision: str = "fp32",
) -> Iterator[Figure]:
    """Figures of parts ``test:KIND:SEVERITY``, uncalibrated and after each calibrator.

    Corruptions are those of `calibrant.data.corruptions`, the same rows for every run on one
    kind of device. ``calibrators`` are as a suite writes them, and second stages
    (``mac_cal_head``, ``tst+temperature``).
    """
    for kind in kinds:
        if kind not in KINDS:
            raise no_such("corruption", kind, KINDS)
    names, wanted = chosen(subject, calibrators), checked(metrics)
    networks = subject.networks(precision)
    test = subject.data.test.to(networks[0].device)
    if test.is_dense:
        raise InputError("corruptions are measured of whole images: this set has a label a pixel")
    for kind in kinds:
        for severity in severities:
            images = replace(test, images=corrupt(test.images, kind, severity, seed=seed))
            part = f"test:{kind}:{severity}"
            for name, said in answers(subject, images, names, precision):
                yield from told(part, name, figures(said, wanted), rows=counted(said))


def chosen(subject: Subject, calibrators: Sequence[str]) -> tuple[str, ...]:
    """``none``, the calibrators, and the second stages, spelled one way."""
    heads = [text for text in calibrators if is_head(text)]
    rest = texts.expanded([text for text in calibrators if text not in heads])
    for text in rest:
        subject.fit(text)  # errors before any work
    return ("none", *rest, *map(spelled, heads))
