"""Limits on figures, for pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calibrant.functional.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation.value import Figure


def check_held_against(on: str, *, intervals: bool) -> None:
    """An error for a word that is no way to hold limits, or a bound where there are none."""
    if on not in ("value", "bound"):
        raise InputError(f"--fail-on is value or bound, found {on!r}")
    if on == "bound" and not intervals:
        raise InputError("--fail-on bound holds limits against intervals: drop --no-intervals")


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

    def failed(self, figure: Figure, on: str) -> str | None:
        """What to say if a figure fails, by its value or by the worse end of its interval."""
        if on == "value":
            return self.failure(figure.value)
        bound = figure.high if self.above else figure.low
        if bound is None:
            return f"{self.name} has no interval here, and so no bound to hold a limit against"
        return self.failure(bound, "at worst ")

    def failure(self, value: float, how: str = "") -> str | None:
        """What to say if a value fails, an undefined one included; None if it does not."""
        if value <= self.limit if self.above else value >= self.limit:
            return None
        side = "above" if self.above else "below"
        return (
            f"{self.name} is {how}{value:.6g}, {side} the limit of {self.limit:g} ({self.option})"
        )
