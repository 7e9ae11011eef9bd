"""The version of calibrant."""

__version__ = "0.2.0"
