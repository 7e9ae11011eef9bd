"""Save and load calibrators: tensors as safetensors, the rest as JSON in the metadata.

Nothing in a file is ever run. The method is a name looked up in the registry, its options
are plain values that must fit the constructor's signature, and its tensors must be those
of the method. A digest of all of it tells a damaged file from a whole one; it is no signature.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import sys
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._version import __version__
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.fitted_rows import FittedRows
from calibrant.calibrators.methods.by_label import ByLabel
from calibrant.calibrators.methods.prior_shift import PriorShift
from calibrant.calibrators.registry import CALIBRATORS, get
from calibrant.core.errors import InputError, first
from calibrant.core.files import check_folder, replace_file
from calibrant.core.registry import FILE_PREFIX
from calibrant.predictions.arrays import as_class_names
from calibrant.predictions.files import check_file, explain_read_errors

FORMAT = 2  # raised when older versions cannot read new files
CLASSES_FORMAT = 1  # of calibrators of classes, which older versions read
RULE_FORMAT = 3  # of rules, with their calibrator
ENDING = ".safetensors"
_KEY = "calibrant.calibrator"  # key in the metadata of the file
_NOT_FINITE = "$float"  # JSON has no infinity and no NaN
_MOST_CLASSES = 1 << 24
# Made from other calibrators, which they hold; nobody chooses them by name.
_HOLDERS: dict[str, type[ByLabel] | type[PriorShift]] = {
    ByLabel.name: ByLabel,
    PriorShift.name: PriorShift,
}


def save(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
) -> Path:
    """Write a fitted calibrator, whole or not at all.

    Args:
        calibrator: The calibrator.
        path: The file, ending in ``.safetensors``.
        class_names: The names of the classes. Default: None (those known from the fit).
    """
    target = check_target(path, "a calibrator")
    header = make_header(calibrator, class_names)
    write_tensors(target, header, gather_tensors(calibrator))
    return target


def check_target(path: str | os.PathLike[str], what: str) -> Path:
    """Return the file to write; raise an error if it cannot be one.

    Args:
        path: The file.
        what: What is written, such as ``a calibrator``.
    """
    target = Path(path)
    if target.suffix.lower() != ENDING:
        raise InputError(
            f"{target}: {what} is saved as {ENDING}, found the ending {target.suffix or '(none)'!r}"
        )
    if target.is_dir():
        raise InputError(f"{target}: is a directory")
    check_folder(target)
    return target


def make_header(calibrator: Calibrator, class_names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what a file says of a fitted calibrator beside its tensors.

    Args:
        calibrator: The calibrator.
        class_names: The names of the classes. Default: None (those known from the fit).
    """
    if not calibrator.is_fitted:
        raise InputError(f"{calibrator.name} is not fitted: call fit before save")
    _check_registered(calibrator)
    options = calibrator.options()
    if type(_make(calibrator.name, options)) is not type(calibrator):
        raise InputError(
            f"{type(calibrator).__name__} is not the calibrator registered as "
            f"{calibrator.name!r}, so its file could not be loaded: register it, or save its "
            "state_dict()"
        )
    names = calibrator.class_names_ if class_names is None else class_names
    newer = calibrator.for_events_ or calibrator.name in _HOLDERS
    header = {
        "format": FORMAT if newer else CLASSES_FORMAT,
        "version": __version__,
        "method": calibrator.name,
        "options": options,
        "class_names": as_class_names(names, _count_names(calibrator, names)),
        "summary": calibrator.summary_,
    }
    if calibrator.fitted_rows_ is not None:
        header["fitted_rows"] = calibrator.fitted_rows_.to_dict()
    owner = _name_owner(calibrator.name)
    if owner is not None:
        header["plugin"] = owner
    return header


def gather_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors as a file holds them: clones, which never share memory."""
    return {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in module.state_dict().items()
    }


def write_tensors(target: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a header, its digest and tensors, whole or not at all.

    Args:
        target: The file.
        header: What to write beside the tensors; it must fit JSON.
        tensors: The tensors by name.
    """
    from safetensors.torch import save_file

    header = {**header, "digest": compute_digest(_to_text(header), tensors)}
    with replace_file(target) as temporary:
        save_file(tensors, temporary, metadata={_KEY: _to_text(header)})


def compute_digest(text: str, tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of a file's header and of its tensors' names, types, shapes and bytes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _check_registered(calibrator: Calibrator) -> None:
    """Raise an error that says what to do if no name stands for the class of a calibrator."""
    name = getattr(calibrator, "name", None)
    if name in _HOLDERS or (isinstance(name, str) and name in CALIBRATORS):
        return
    raise InputError(
        f"{type(calibrator).__name__} is not registered, so its file could not be loaded: put "
        "@calibrant.calibrators.register before the class, or save its state_dict()"
    )


def _name_owner(method: str) -> str | None:
    """Return the file or module that registered a method; None for a built-in one."""
    module = CALIBRATORS.module_of(method)
    if module is None:
        return None
    if module.startswith(FILE_PREFIX) or module == "__main__":
        path = getattr(sys.modules.get(module), "__file__", None)
        return None if path is None else Path(path).name
    return module


def _make(method: str, options: dict[str, Any]) -> Calibrator:
    """Make a fresh calibrator."""
    return _HOLDERS[method](**options) if method in _HOLDERS else get(method, **options)


def _count_names(calibrator: Calibrator, names: Sequence[str] | None) -> int:
    """Return how many class names there are; an event has one, or those of two classes."""
    if calibrator.for_events_:
        return 2 if names is not None and len(names) == 2 else 1
    return int(calibrator.num_classes_)


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Load the calibrator in a file that `save` wrote; its class names are ``class_names_``.

    Args:
        path: The file.
    """
    file = check_file(path, (ENDING,))
    with explain_read_errors(file):
        header, tensors = read_tensors(file)
        if "rule" in header:
            raise InputError(
                "holds a rule made by `decide` or `sets`, not a calibrator: load it with "
                "calibrant.load, apply it with `calibrant apply`"
            )
        return restore(header, tensors)


def restore(header: dict[str, Any], tensors: dict[str, Tensor]) -> Calibrator:
    """Make a calibrator from what `make_header` and `gather_tensors` gave.

    Args:
        header: The header.
        tensors: The tensors.
    """
    _check_header(header)
    _check_options(header["method"], header["options"])
    calibrator = _make(header["method"], header["options"])
    _check_tensors(calibrator, tensors)
    calibrator.load_state_dict(tensors)
    _check_output(calibrator)
    calibrator.summary_ = header["summary"]
    calibrator.fitted_rows_ = FittedRows.from_dict(header.get("fitted_rows"))
    names = header["class_names"]
    calibrator.class_names_ = as_class_names(names, _count_names(calibrator, names))
    return calibrator


def read_tensors(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header and the tensors of a file that `write_tensors` wrote.

    Args:
        file: The file.
    """
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata() or {}
        if _KEY not in metadata:
            names = first(repr(key) for key in sorted(opened.keys()))
            raise InputError(
                f"not a calibrator written by calibrant: it holds tensors {names or '(none)'} and "
                "names no method; read predictions with Predictions.read"
            )
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        header = _from_text(metadata[_KEY])
        if "rule" not in header:
            _check_header(header)
        if "digest" in header:  # older files have none
            rest = json.loads(metadata[_KEY])
            if rest.pop("digest") != compute_digest(json.dumps(rest), tensors):
                what = "rule" if "rule" in header else "calibrator"
                raise InputError(
                    "damaged: its contents do not have the digest that was written with them: save "
                    f"the {what} again"
                )
    return header, tensors


def _from_text(text: str) -> dict[str, Any]:
    header = json.loads(text, object_hook=_decode)
    if not isinstance(header, dict):
        raise InputError(f"damaged: its header should be a JSON object, found {header!r:.80}")
    number = header.get("format")
    if type(number) is not int or number < 1:
        raise InputError(f"damaged: its format should be a positive number, found {number!r:.80}")
    most = RULE_FORMAT if "rule" in header else FORMAT
    if number > most:
        raise InputError(
            f"written in format {number} by calibrant {header.get('version', '(unknown)')!s:.40}; "
            f"this is calibrant {__version__}, which reads up to format {most}: upgrade calibrant"
        )
    return header


def _check_header(header: dict[str, Any]) -> None:
    """Raise an error unless a header can be that of a calibrator that is known here."""
    wanted = {"method": str, "options": dict, "summary": dict, "class_names": (list, type(None))}
    for key, kind in wanted.items():
        if not isinstance(header.get(key), kind):  # type: ignore[arg-type]
            raise InputError(f"damaged: its {key} cannot be {header.get(key)!r:.80}")
    if header["method"] not in CALIBRATORS and header["method"] not in _HOLDERS:
        written = f"{header.get('version', '(unknown)')!s:.40}"
        if isinstance(header.get("plugin"), str):
            # The file only names the plugin: nothing that a file names is ever imported.
            raise InputError(
                f"its method {header['method']!r:.80} is not built in, and {header['plugin']!r:.80}"
                ", which registered it, is not loaded: if you trust that file or module, load it "
                "first (--plugins FILE_OR_MODULE, or import it in Python)"
            )
        raise InputError(
            f"its method is {header['method']!r:.80}, which calibrant {__version__} does not have; "
            f"it was written by calibrant {written}"
        )


def _to_text(header: dict[str, Any]) -> str:
    try:
        return json.dumps(_encode(header), allow_nan=False)
    except TypeError as error:
        raise InputError(f"the calibrator's options or summary do not fit JSON: {error}") from error


def _encode(value: Any) -> Any:
    if isinstance(value, (Tensor, np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return {_NOT_FINITE: repr(value)}
    if isinstance(value, dict):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _decode(entry: dict[str, Any]) -> Any:
    return float(entry[_NOT_FINITE]) if entry.keys() == {_NOT_FINITE} else entry


def _check_options(method: str, options: dict[str, Any]) -> None:
    """Raise an error unless names and types of options fit the method's constructor."""
    kind = type(_make(method, {}))
    known = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    hints = typing.get_type_hints(kind.__init__)
    for name, value in options.items():
        if name not in known:
            raise InputError(f"{method} has no option {name!r:.80}, only {first(known, 20)}")
        if not fits_hint(value, hints.get(name, Any)):
            raise InputError(f"the option {name} of {method} cannot be {value!r:.80}")
    members = options.get("members", ()) if method == ByLabel.name else ()
    if method == PriorShift.name:
        members = [options.get("member")]
    for member in members:
        part = member.get("method") if isinstance(member, dict) else None
        if not isinstance(part, str) or part not in CALIBRATORS:
            raise InputError(f"damaged: no member of {method} can be {member!r:.80}")
        _check_options(part, {key: member[key] for key in member if key != "method"})


def fits_hint(value: Any, hint: Any) -> bool:
    """Return whether a JSON value fits a type hint."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits_hint(value, part) for part in parts)
    if origin is typing.Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is not None:
        if isinstance(origin, type) and issubclass(dict, origin):
            return isinstance(value, dict)
        items = [part for part in parts if part is not Ellipsis]
        return isinstance(value, list) and (
            len(items) != 1 or all(fits_hint(item, items[0]) for item in value)
        )
    if hint is Any or hint is object:
        return True
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _check_tensors(calibrator: Calibrator, tensors: dict[str, Tensor]) -> None:
    """Raise an error unless the tensors are those of the method."""
    expected = calibrator.state_dict()
    for key in expected.keys() & set(calibrator.added_tensors):
        tensors.setdefault(key, expected[key])  # files of earlier versions lack it
    missing, unknown = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing or unknown:
        raise InputError(
            f"damaged: {calibrator.name} has tensors {first(sorted(expected), 12)}; missing "
            f"{first(sorted(missing)) or 'none'}, unknown {first(sorted(unknown)) or 'none'}"
        )
    for key, value in tensors.items():
        # Loading would convert one type to another silently.
        if value.is_floating_point() != expected[key].is_floating_point():
            raise InputError(f"damaged: {key} should be {expected[key].dtype}, found {value.dtype}")
        if value.is_floating_point() and bool(torch.isnan(value).any()):
            raise InputError(f"damaged: {key} holds NaN")
    classes = tensors["num_classes_"]
    least = 1 if calibrator.takes_events or calibrator.takes_labels else 2
    if classes.ndim or not least <= int(classes) <= _MOST_CLASSES:
        raise InputError(f"damaged: num_classes_ cannot be {classes.tolist()!r:.80}")


def _check_output(calibrator: Calibrator) -> None:
    """Map one row, which fails if tensors have wrong shapes."""
    width, classes = calibrator.input_width, int(calibrator.num_classes_)
    row = torch.linspace(-1.0, 1.0, width).unsqueeze(0)
    if calibrator.for_events_:
        row = torch.zeros(1)
    row = row.reshape(1, width, 1, 1).expand(1, width, 4, 4) if calibrator.dense_only else row
    scores = row if calibrator.from_logits else row.sigmoid() if row.ndim == 1 else row.softmax(1)
    with torch.no_grad():
        mapped = calibrator(scores)
    wanted = (1,) if calibrator.for_events_ else (1, classes, *row.shape[2:])
    if tuple(mapped.shape) != wanted or not bool(torch.isfinite(mapped).all()):
        what = "features" if calibrator.takes_features else "logits"
        raise InputError(
            f"damaged: its tensors do not make a {calibrator.name} of {classes} classes: a row of "
            f"{width} {what} gives shape {tuple(mapped.shape)}"
        )
