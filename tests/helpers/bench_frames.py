"""Results that were never run: a small suite and rows whose figures a test chooses."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from calibrant.bench.store.rows import make_row
from calibrant.bench.suite.suite import Suite

# Some figures of four published tables, as suites read them.
PUBLISHED = Path(__file__).parents[1] / "fixtures" / "published.csv"
SUITE = """
name: small
about: four methods
defaults: {{model: {model}, epochs: 10}}
grid: {{data: [{data}]}}
seeds: [{seeds}]
methods:
  cross_entropy: {{}}
  acls: {{loss: acls(margin=6)}}
  mbls: {{loss: mbls(margin=6)}}
  focal: {{loss: focal(gamma=3)}}
calibrators: [temperature]
baseline: cross_entropy
metrics: [accuracy, ece]
{more}
"""


def small(data="cifar10", seeds="0, 1, 2", model="resnet50", name="small", more=""):
    text = SUITE.format(data=data, seeds=seeds, model=model, more=more)
    return Suite.parse(text.replace("name: small", f"name: {name}"))


def one_after_another(count):
    """A time for the count-th run, an hour after the last: none shares a machine."""
    when = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(hours=count)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def frame_of(suite, values, seconds=None):
    """Rows of a suite: ``values[method]`` is a list by seed, or a function of the spec.

    Keys may also be (method, calibrator), (method, calibrator, metric) or with a part last;
    None leaves a run out.
    """
    import pandas as pd

    rows = []
    seeds = sorted({spec.config.seed for _, spec in suite.specs})
    for method, spec in suite.specs:
        for key, series in values.items():
            name, *rest = key if isinstance(key, tuple) else (key,)
            calibrator, metric, part = [*rest, *("none", "ece", "test")[len(rest) :]]
            if name != method:
                continue
            value = series(spec) if callable(series) else series[seeds.index(spec.config.seed)]
            if value is not None:
                rows.append(
                    make_row(spec, part=part, metric=metric, value=value, calibrator=calibrator)
                )
        if seconds is not None and any(row["key"] == spec.key for row in rows):
            took = make_row(spec, part="run", metric="train_seconds", value=seconds)
            rows.append(took | {"written": one_after_another(len(rows))})
    # What the runner adds, and tables must not stumble over.
    rows += [
        make_row(spec, part="run", metric="measured", value=1.0, calibrator="after:shift({})")
        for _, spec in suite.specs[:2]
    ]
    return pd.DataFrame(rows)
