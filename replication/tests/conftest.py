"""Fixtures that the tests of the package have as well."""

from tests.conftest import data_folder

__all__ = ["data_folder"]
