"""Export calibrators, and models with one attached, as `torch.export` programs and ONNX."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.attach import Calibrated
from calibrant.calibrators.base import Calibrator
from calibrant.core.errors import InputError
from calibrant.core.files import check_folder, replace_file

TOLERANCE = 1e-5  # largest relative difference between ONNX Runtime and torch
_EXTRA = ("onnx", "onnxscript", "onnxruntime")


def export_program(
    module: nn.Module, example: Tensor | Sequence[Tensor] | None = None
) -> torch.export.ExportedProgram:
    """Export a fitted calibrator, or a model with one attached, as a `torch.export` program.

    The number of rows is free; the rest is as in the example. The module is exported in
    evaluation mode and left as it was.

    Args:
        module: The calibrator, or the model with a calibrator.
        example: Inputs, of two rows or more. Default: None (for a calibrator of rows: (N,K)
            float32 logits; (N,) for one of events).
    """
    inputs = _example(module, example)
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in inputs)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        # A forward that takes *args has one entry for all of them.
        starred = isinstance(module, (Calibrated, Probabilities))
        with torch.no_grad():
            return torch.export.export(
                module, inputs, dynamic_shapes=(shapes,) if starred else shapes, strict=False
            )
    finally:
        for part, mode in modes:
            part.training = mode


def export_onnx(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    example: Tensor | Sequence[Tensor] | None = None,
    probabilities: bool = False,
) -> Path:
    """Write a fitted calibrator, or a model with one attached, as ONNX; the batch is free.

    ONNX Runtime runs the file on the example and on two rows before it is put in place, and
    must agree with torch to 1e-5. Needs ``pip install calibrant[onnx]``.

    Args:
        module: The calibrator, or the model with a calibrator.
        path: The file to write.
        example: Inputs, of two rows or more. Default: None (for a calibrator of rows: (N,K)
            float32 logits or probabilities, whichever it takes; (N,) for one of events or two
            classes that `calibrate` fitted, where an example of (N,2) makes a file for both
            columns of ``predict_proba``).
        probabilities: True appends the softmax (the logistic function for a binary score).
            Default: False (logits, as the module gives).
    """
    check_onnx()
    target = Path(path)
    check_folder(target)
    inputs = _example(module, example)
    # A model that gives probabilities still gives them with a calibrator attached.
    makes_probabilities = isinstance(module, Calibrated) and not module.calibrator.from_logits
    whole = Probabilities(module) if probabilities and not makes_probabilities else module
    with _quiet_exporter():
        program = export_program(whole, inputs)
    names_in, names_out = _names(
        module, "probs" if probabilities or makes_probabilities else "logits"
    )
    single = len(program.graph_signature.user_outputs) == 1
    with explain_exporter_errors():
        exported: Any = torch.onnx.export(
            program,
            inputs,
            dynamo=True,
            verbose=False,
            input_names=names_in,
            output_names=names_out if single else None,
        )
    with replace_file(target) as temporary:
        exported.save(str(temporary), external_data=False)
        _verify(temporary, program.module(), inputs)
    return target


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep the exporter's remarks on its own code from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def explain_exporter_errors() -> Iterator[None]:
    """Turn an error of PyTorch's exporter into one that says what to do; hide its remarks."""
    try:
        with _quiet_exporter():
            yield
    except torch.onnx.OnnxExporterError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"PyTorch {torch.__version__} could not export this to ONNX ({reason:.80}); a newer "
            "PyTorch and onnxscript may: pip install -U torch 'calibrant[onnx]'"
        ) from error


def check_onnx() -> None:
    """Raise an error that names the pip command if the packages of the extra are missing."""
    absent = [name for name in _EXTRA if find_spec(name) is None]
    if absent:
        raise InputError(f"ONNX needs {', '.join(absent)}: pip install 'calibrant[onnx]'")


class Probabilities(nn.Module):
    """A module that turns the logits of another into probabilities.

    Args:
        module: The module that gives logits.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Tensor) -> Tensor:
        """Return the softmax, or the logistic function of a (N,) or (N,1) score or of labels."""
        logits = self.module(*args)
        if not isinstance(logits, Tensor):
            raise InputError(
                f"probabilities=True needs a module that gives a tensor, found "
                f"{type(logits).__name__}"
            )
        labels = any(isinstance(p, Calibrator) and p.takes_labels for p in self.module.modules())
        if logits.ndim == 1 or logits.shape[1] == 1 or labels:
            return torch.sigmoid(logits)
        return torch.softmax(logits, dim=1)


def _names(module: nn.Module, gives: str) -> tuple[list[str] | None, list[str]]:
    if isinstance(module, Calibrator):
        if module.takes_features:
            return ["features"], [gives]
        return ["logits" if module.from_logits else "probs"], [f"calibrated_{gives}"]
    return None, [gives]


def _example(module: nn.Module, example: Tensor | Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    for part in module.modules():
        if isinstance(part, Calibrator) and not part.is_fitted:
            raise InputError(f"{part.name} is not fitted: call fit before export")
    if example is None:
        if not isinstance(module, Calibrator) or module.dense_only:
            raise InputError("give example=, a batch of its inputs with two rows or more")
        width = module.input_width
        rows = torch.linspace(-1, 1, 3 * width).reshape(width, 3).t().contiguous()
        rows = rows.to(module.num_classes_.device)
        rows = rows.squeeze(1) if module.for_events_ else rows
        if module.from_logits:
            return (rows,)
        alone = module.for_events_ or module.takes_labels
        return (rows.sigmoid() if alone else rows.softmax(1),)
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    # A batch of one row would be taken for a constant.
    if not inputs or any(part.ndim == 0 or len(part) < 2 for part in inputs):
        raise InputError("the example must have at least two rows in every input")
    return inputs


def _verify(path: Path, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Run the file on the example and on its first two rows, and compare with torch."""
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    for rows in (inputs, tuple(part[:2] for part in inputs)):
        with torch.no_grad():
            expected = next(iter(torch.utils._pytree.tree_leaves(module(*rows)))).cpu()
        fed = {name: part.cpu().numpy() for name, part in zip(names, rows, strict=True)}
        output = torch.from_numpy(session.run(None, fed)[0])
        scale = max(1.0, float(expected.abs().max()))
        same = output.shape == expected.shape
        gap = float((output - expected).abs().max()) if same else torch.inf
        if not gap <= TOLERANCE * scale:
            raise InputError(
                f"ONNX Runtime differs from torch by {gap:.3g}; nothing was written to this path"
            )
