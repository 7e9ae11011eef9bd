"""Data sets of a process's runs, each loaded once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from calibrant.data.value import Splits
from calibrant.training.config import Config
from calibrant.training.making import load_data

KEPT = 3  # data sets a process keeps; the one longest unused goes first
_loaded: OrderedDict[tuple[Any, ...], Splits] = OrderedDict()


def splits_of(config: Config) -> Splits:
    """The data a run's settings name, from memory where an earlier run loaded the same."""
    key = (
        config.data,
        config.data_folder,
        config.download,
        config.size,
        config.validation,
        config.split_seed,
        config.long_tail,
    )
    if key not in _loaded:
        while len(_loaded) >= KEPT:
            _loaded.popitem(last=False)
        _loaded[key] = load_data(config)
    _loaded.move_to_end(key)
    return _loaded[key]
