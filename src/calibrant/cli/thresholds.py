"""Limits on figures, for pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calibrant.functional.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation, Group, Groups
    from calibrant.evaluation.value import Figure


def check_held_against(on: str, *, intervals: bool) -> None:
    """An error for a word that is no way to hold limits, or a bound where there are none."""
    if on not in ("value", "bound"):
        raise InputError(f"--fail-on is value or bound, found {on!r}")
    if on == "bound" and not intervals:
        raise InputError("--fail-on bound holds limits against intervals: drop --no-intervals")


def check_groups_judged(*, groups: bool, intervals: bool) -> None:
    """An error where --fail-groups has no groups to judge, or nothing to judge them by."""
    if not groups:
        raise InputError("--fail-groups fails for groups that are off: name their file by --groups")
    if not intervals:
        raise InputError("--fail-groups judges groups by intervals: drop --no-intervals")


class Failure(NamedTuple):
    """A limit that was passed: the option that set it, of what it is, and the words for it."""

    option: str
    name: str
    says: str


def failures_of(
    found: Evaluation, thresholds: list[Threshold], on: str, *, by_groups: bool
) -> list[Failure]:
    """Every limit that was passed: those of figures, then the groups that are off."""
    failures = []
    for one in thresholds:
        says = one.failed(found[one.name], on)
        if says is not None:
            failures.append(Failure(one.option, one.name, says))
    if by_groups and found.groups is not None:
        failures += _off(found.groups, on)
    return failures


def _off(groups: Groups, on: str) -> list[Failure]:
    """The groups that are off; held against the bound, those of too few rows as well."""
    those = [one for one in groups.by_gap if one.is_off or (on == "bound" and one.is_few)]
    return [
        Failure("--fail-groups", one.value, f"{groups.name} {_described(one)} (--fail-groups)")
        for one in those
    ]


def _described(group: Group) -> str:
    from calibrant.report import words

    gap = f"gap {words.points(group.gap)} points" if group.num_rows else "no rows"
    if group.gap_low is not None and group.gap_high is not None:
        gap += f", interval {words.points(group.gap_low)} to {words.points(group.gap_high)}"
    number = f"{group.num_rows:,} row{'' if group.num_rows == 1 else 's'}"
    if group.is_off:
        return f"{group.value} is {group.finding}: {gap}, {number}"
    return f"{group.value}: {group.finding} ({gap}, {number})"


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
