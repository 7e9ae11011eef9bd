"""The version of calibrant, said once."""

__version__ = "0.1.0"
