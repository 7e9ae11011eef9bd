"""Measure corrupted test images, with calibrators fitted on clean validation rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from calibrant.bench.measure.measurement import SHORT, Measurement, check_metrics, measure_metrics
from calibrant.bench.measure.stage_two import list_calibrators, predict_after
from calibrant.bench.measure.subject import Subject
from calibrant.core.errors import InputError, first, no_such
from calibrant.data.corruptions import KINDS, SEVERITIES, corrupt
from calibrant.data.images import Images
from calibrant.data.official import read_corrupted

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
    official: bool = False,
) -> Iterator[Measurement]:
    """Measure parts ``test:KIND:SEVERITY``, uncalibrated and after each calibrator.

    Official files have parts of their own, ``official:KIND:SEVERITY``, so that no table mixes
    them with the corruptions made here.

    Args:
        subject: the run.
        kinds: corruptions of `calibrant.data.corruptions`. Default: all.
        severities: from 1 to 5. Default: all.
        calibrators: as a suite writes them, and second stages (``tst+temperature``).
        metrics: what is measured. Default: `METRICS`.
        seed: of the corruptions: every run gets the same rows on one kind of device. Default: 0.
        precision: of the network, fp32 or bf16. Default: fp32.
        official: whether to read the files of CIFAR-10-C, CIFAR-100-C, ImageNet-C or
            Tiny-ImageNet-C in place of corrupting the test images here. Default: False.
    """
    for kind in kinds:
        if kind not in KINDS and not official:  # official files have four more
            raise no_such("corruption", kind, KINDS)
    names, wanted = list_calibrators(subject, calibrators), check_metrics(metrics)
    networks = subject.networks(precision)
    test = subject.data.test.to(networks[0].device)
    if test.is_dense:
        raise InputError("shift takes a label for each image, and these have one for each pixel")
    for kind in kinds:
        for severity in severities:
            if official:
                read = read_corrupted(
                    subject.config.data, kind, severity, folder=subject.config.data_folder
                ).to(networks[0].device)
                _check_classes(read, test)
                images = replace(test, images=read.images, labels=read.labels)
            else:
                images = replace(test, images=corrupt(test.images, kind, severity, seed=seed))
            for name, predictions in predict_after(subject, images, names, precision):
                part = f"{'official' if official else 'test'}:{kind}:{severity}"
                yield from measure_metrics(part, name, predictions, wanted)


def _check_classes(read: Images, test: Images) -> None:
    """Refuse corrupted images whose labels would not mean the classes of the test images."""
    named = not all(name.isdigit() for name in read.class_names)  # CIFAR's files have no names
    if read.num_classes != test.num_classes or (named and read.class_names != test.class_names):
        raise InputError(
            f"{read.name} has {read.num_classes} classes such as {first(read.class_names)}, and "
            f"the test images have {test.num_classes} such as {first(test.class_names)}"
        )
