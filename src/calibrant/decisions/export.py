"""Export rules, with their calibrators, as ONNX."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.export import TOLERANCE, check_onnx, explain_exporter_errors
from calibrant.core.errors import InputError
from calibrant.core.files import check_folder, replace_file
from calibrant.decisions.rule import Rule
from calibrant.decisions.sets import PredictionSets

_ROWS = 64  # of random scores, on which the file is compared with torch


class _Outputs(nn.Module):
    """A rule that gives its decisions and the calibrated probabilities."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, scores: Tensor, extra: Tensor | None = None) -> tuple[Tensor, Tensor]:
        logits = self.rule.calibrator(scores)
        probs = torch.sigmoid(logits) if logits.ndim == 1 else torch.softmax(logits, dim=1)
        return self.rule.decide_logits(logits, extra), probs


def export_onnx(rule: Rule, path: str | os.PathLike[str]) -> Path:
    """Write a rule as ONNX: scores in, decisions and calibrated probabilities out.

    The inputs are ``logits`` (or ``probs``), (N,K) or (N,) float32, and ``group``, the place of
    each row's group in ``rule.terms.names`` (int64), or ``random``, (N,) float32, where the rule
    needs one. The outputs are ``accepted`` (N,) or ``sets`` (N,K), truth values, and
    ``calibrated_probs``. ONNX Runtime runs the file before it is put in place, and must agree with
    torch. Needs ``pip install calibrant[onnx]``.

    Args:
        rule: The rule.
        path: The file to write.
    """
    check_onnx()
    target = Path(path)
    check_folder(target)
    inputs, names = _make_inputs(rule)
    outputs = _Outputs(rule).eval()
    batch = torch.export.Dim("batch")
    decided = "sets" if isinstance(rule, PredictionSets) else "accepted"
    with torch.no_grad(), explain_exporter_errors():
        program = torch.export.export(
            outputs, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs), strict=False
        )
        exported: Any = torch.onnx.export(
            program,
            inputs,
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=[decided, "calibrated_probs"],
        )
    with replace_file(target) as temporary:
        exported.save(str(temporary), external_data=False)
        _verify(temporary, outputs, inputs)
    return target


def _make_inputs(rule: Rule) -> tuple[tuple[Tensor, ...], list[str]]:
    """Return random inputs of a rule, and their names."""
    generator = torch.Generator().manual_seed(0)
    width = () if rule.task == "events" else (rule.num_classes,)
    scores = 4 * torch.randn((_ROWS, *width), generator=generator)
    logits = rule.calibrator.from_logits
    if not logits:
        scores = scores.sigmoid() if scores.ndim == 1 else scores.softmax(1)
    inputs, names = [scores], ["logits" if logits else "probs"]
    if rule.terms.by == "group":
        inputs.append(torch.arange(_ROWS) % len(rule.terms.names))
        names.append("group")
    elif rule.terms.score == "aps":
        inputs.append(torch.rand(_ROWS, generator=generator))
        names.append("random")
    return tuple(inputs), names


def _verify(path: Path, outputs: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Run the file on all inputs and on two rows, and compare with torch.

    Decisions may differ in the few rows whose score is the threshold up to rounding.
    """
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    for rows in (inputs, tuple(part[:2] for part in inputs)):
        with torch.no_grad():
            decided, probs = outputs(*rows)
        fed = {name: part.numpy() for name, part in zip(names, rows, strict=True)}
        onnx_decided, onnx_probs = (torch.from_numpy(array) for array in session.run(None, fed))
        gap = float((onnx_probs - probs).abs().max()) if onnx_probs.shape == probs.shape else 1.0
        if not gap <= TOLERANCE:
            raise InputError(
                f"ONNX Runtime differs from torch by {gap:.3g}; nothing was written to this path"
            )
        if onnx_decided.shape != decided.shape or int((onnx_decided != decided).sum()) > 1:
            raise InputError(
                "ONNX Runtime and torch decide differently; nothing was written to this path"
            )
