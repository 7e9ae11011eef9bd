"""Limits on figures, for pipelines."""

from __future__ import annotations

from typing import NamedTuple

from calibrant.functional.errors import InputError


class Threshold(NamedTuple):
    """A limit that a figure must not pass."""

    name: str
    limit: float
    above: bool  # whether it fails above the limit, or below it

    @property
    def option(self) -> str:
        """The option it was given by."""
        return "--fail-above" if self.above else "--fail-below"

    @classmethod
    def parse(cls, text: str, *, above: bool) -> Threshold:
        """From ``NAME=LIMIT``; a metric is limited on its worse side only."""
        from calibrant.metrics import measure

        option = cls("", 0.0, above).option
        name, _, number = (part.strip() for part in text.partition("="))
        try:
            limit = float(number)
        except ValueError:
            limit = float("nan")
        if not name or limit != limit:
            raise InputError(
                f"{option} {text!r} is not NAME=NUMBER, such as "
                f"{'ece=0.05' if above else 'accuracy=0.9'}"
            )
        better = measure(name).better
        if better != "neither" and above != (better == "lower"):
            other = cls(name, limit, not above).option
            raise InputError(f"{name} is better {better}: use {other} {name}={number}")
        return cls(name, limit, above)

    def failure(self, value: float) -> str | None:
        """What to say if a value fails, an undefined one included; None if it does not."""
        if value <= self.limit if self.above else value >= self.limit:
            return None
        side = "above" if self.above else "below"
        return f"{self.name} is {value:.6g}, {side} the limit of {self.limit:g} ({self.option})"
