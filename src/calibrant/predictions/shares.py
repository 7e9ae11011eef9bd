"""Shares of classes: count them in labels, and read those that a user states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first

Floats: TypeAlias = NDArray[np.float64]
Shares: TypeAlias = "float | Mapping[str, float] | Sequence[float] | NDArray[np.float64]"

_ROUNDING = 0.005  # shares written with two digits need not sum to one exactly


def count_shares(
    labels: NDArray[np.int64], num_classes: int, weights: Floats | None = None
) -> Floats:
    """Return the share of each class among labels, (K,).

    Args:
        labels: (N,) labels, 0 to K−1.
        num_classes: K.
        weights: (N,) the weight of each row; None if all count the same.
    """
    sums = np.bincount(labels, weights, num_classes).astype(np.float64)
    return np.asarray(sums / sums.sum())


def read_shares(
    stated: Shares,
    *,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    event: str | None = None,
    positive: int = 1,
    what: str = "prevalence",
) -> Floats:
    """Return the shares of K classes that a user states, (K,); for an event those of no and yes.

    Args:
        stated: A number, the share of the event or of the positive class of two; or a share for
            each class, in order or by name.
        num_classes: K, 2 for an event.
        class_names: The names of the classes. Default: None (they go by number).
        event: The name of the event, where rows are events. Default: None (they are classes).
        positive: The class of two that a single number is the share of. Default: 1 (as everywhere).
        what: The name of the option, for errors. Default: 'prevalence'.

    >>> read_shares(0.05, num_classes=2).tolist()
    [0.95, 0.05]
    """
    names = tuple(class_names or (str(k) for k in range(num_classes)))
    if isinstance(stated, Mapping):
        values = _order_by_name(stated, names, event, what)
    elif np.ndim(stated) == 0:  # a text, too, is refused as no number
        if num_classes != 2:
            raise InputError(
                f"{what}={stated!r} is one number, and there are {num_classes} classes: give a "
                "share for each, by name or in their order"
            )
        share = _as_number(stated, what)
        values = [1 - share, share] if positive == 1 else [share, 1 - share]
    else:
        values = [_as_number(value, what) for value in np.asarray(stated, dtype=object).tolist()]
    if len(values) != num_classes:
        raise InputError(
            f"{what} needs a share for each of {num_classes} classes, found {len(values)}"
        )
    shares = np.array(values, dtype=np.float64)
    total = float(shares.sum())
    if shares.max() > 1 and (abs(total - 100) <= 100 * _ROUNDING or num_classes == 2):
        raise InputError(
            f"{what} takes shares such as 0.05: if these are percentages, divide by 100"
        )
    if not (shares > 0).all():
        k = int(np.argmin(shares))
        name = (f"no {event}", event)[k] if event else names[k]
        raise InputError(
            f"every class needs a share above 0, found {shares[k]:g} for {name}: a class that "
            "cannot occur would be left with probability 0; give a small share, such as 0.0001"
        )
    if abs(total - 1) > _ROUNDING:
        raise InputError(f"the shares of all classes must sum to 1, found {total:.6g}")
    return np.asarray(shares / total)


def _order_by_name(
    stated: Mapping[str, float], names: tuple[str, ...], event: str | None, what: str
) -> list[float]:
    """Return shares in the order of the classes; of two classes one is enough."""
    values = {str(name): _as_number(value, what) for name, value in stated.items()}
    if event is not None:
        if list(values) != [event]:
            raise InputError(
                f"{what} takes the share of the event {event!r}, found {first(values) or 'none'}"
            )
        return [1 - values[event], values[event]]
    if unknown := values.keys() - set(names):
        raise InputError(
            f"{what} names {first(sorted(unknown))}, which is no class: they are {first(names, 12)}"
        )
    if len(names) == 2 and len(values) == 1:
        name, share = next(iter(values.items()))
        return [share, 1 - share] if name == names[0] else [1 - share, share]
    if missing := [name for name in names if name not in values]:
        raise InputError(f"{what} has no share for {first(missing)}: name every class")
    return [values[name] for name in names]


def _as_number(value: object, what: str) -> float:
    """Return a finite number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise InputError(f"{what} takes numbers between 0 and 1, found {value!r:.60}")
    number = float(value)
    if not np.isfinite(number):
        raise InputError(f"{what} takes numbers between 0 and 1, found {value!r:.60}")
    return number
