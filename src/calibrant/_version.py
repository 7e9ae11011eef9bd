"""The version of calibrant."""

__version__ = "0.1.0"
