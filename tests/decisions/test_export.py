"""Rules run in ONNX Runtime as they do in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import calibrant
from calibrant import Predictions
from calibrant.core.errors import InputError
from calibrant.decisions import export_onnx

from .test_thresholds import make_classes, make_events

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def make_rule(kind):
    """Return a rule, rows and the further input of each kind."""
    rows = make_classes()
    calibrator = calibrant.calibrate(make_classes(seed=1), method="temperature")
    if kind == "class":
        return calibrant.decide(rows, max_error=0.1, calibrator=calibrator, by="class"), rows, {}
    if kind == "group":
        groups = np.where(np.arange(len(rows)) % 2, "odd", "even")
        codes = (np.arange(len(rows)) % 2).astype(np.int64)
        return calibrant.decide(rows, max_error=0.1, groups=groups), rows, {"group": codes}
    if kind == "events":
        events = make_events()
        return calibrant.decide(events, min_recall=0.9), events, {}
    if kind == "probabilities":
        exp = np.exp(rows.array)
        rows = Predictions.from_probs(exp / exp.sum(1, keepdims=True), rows.labels)
        return calibrant.prediction_sets(rows, by="class"), rows, {}
    drawn = np.random.default_rng(0).random(len(rows)).astype(np.float32)
    return calibrant.prediction_sets(rows, method="aps"), rows, {"random": drawn}


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("kind", ["group", "class", "aps", "probabilities", "events"])
def test_onnx_decides_as_torch_does(kind, tmp_path):
    rule, rows, extra = make_rule(kind)
    session = onnxruntime.InferenceSession(
        export_onnx(rule, tmp_path / "rule.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )
    scores = rows.array.astype(np.float32)
    first = session.get_inputs()[0].name
    assert first == ("probs" if kind == "probabilities" else "logits")
    decided, probs = session.run(None, {first: scores, **extra})
    if kind in ("probabilities", "aps"):
        expected = rule.sets(scores, **extra)
    else:
        groups = {"groups": np.where(extra["group"], "odd", "even")} if extra else {}
        expected = rule.accept(scores, **groups)
    assert decided.dtype == bool
    assert (decided != expected).mean() < 1e-3
    assert np.allclose(probs, rule.calibrator.predict_proba(scores), atol=1e-5)


def test_an_export_that_pytorch_cannot_make_says_what_to_do(tmp_path, monkeypatch):
    def fail(*given, **options):
        raise torch.onnx.OnnxExporterError("Failed to export\nby many lines of reasons")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(InputError, match=r"\(Failed to export\); a newer PyTorch"):
        export_onnx(make_rule("group")[0], tmp_path / "rule.onnx")
    assert list(tmp_path.iterdir()) == []
