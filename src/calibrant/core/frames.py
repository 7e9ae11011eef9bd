"""Tables as data frames of pandas or polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.core.errors import InputError
from calibrant.core.extras import require

LIBRARIES = ("pandas", "polars")


def check_library(library: str) -> None:
    """Raise an error if the library of data frames is not one of those known.

    Args:
        library: ``"pandas"`` or ``"polars"``.
    """
    if library not in LIBRARIES:
        raise InputError(f"library must be one of {', '.join(LIBRARIES)}, found {library!r}")


def frame_of_columns(columns: Mapping[str, Any], *, library: str = "pandas") -> Any:
    """Return a data frame with the columns given.

    Args:
        columns: The values of each column, by its name.
        library: ``"pandas"`` or ``"polars"``.
    """
    check_library(library)
    purpose = f"to_frame(library={library!r})"
    module = require(library, extra=library, purpose=purpose)
    return module.DataFrame(dict(columns))


def frame_of_rows(rows: Sequence[Mapping[str, Any]], *, index: str, library: str = "pandas") -> Any:
    """Return a data frame with a row for each mapping.

    Args:
        rows: Mappings with the same keys.
        index: The key that becomes the index of a pandas frame; polars keeps it as a column.
        library: ``"pandas"`` or ``"polars"``.
    """
    check_library(library)
    if library == "pandas":
        import pandas as pd

        return pd.DataFrame(list(rows)).set_index(index)
    polars = require("polars", extra="polars", purpose="to_frame(library='polars')")
    return polars.DataFrame(list(rows), infer_schema_length=None)
