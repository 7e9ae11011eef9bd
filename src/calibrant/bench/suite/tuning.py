"""The ``tune:`` block of a suite: the settings to try, the rule, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from calibrant.bench.measure.measurement import USUAL, check_metrics
from calibrant.bench.suite.expansion import check_names
from calibrant.bench.suite.schema import TunedEntry, check_tune
from calibrant.bench.tables.formatting import higher_is_better, label
from calibrant.core.errors import InputError, no_such
from calibrant.core.method_text import has_term, parse_terms, set_option
from calibrant.losses.registry import is_secondary
from calibrant.training.config import Config

RULES = ("lowest_ece",)
OF_A_RECIPE = "recipe."
BESIDE = ("accuracy", "nll")  # figures of a candidate beside the metric that decides


def _set_loss_option(text: str, names: Sequence[str], option: str, value: Any) -> str:
    """Change an option of a loss's parts; a primary loss has no weight ``beta``."""
    for term in parse_terms(text):
        if option == "beta" and term.name in names and not is_secondary(term.name):
            raise InputError(f"{term.name} is a primary loss, and has no weight beta")
    return set_option(text, names, option, value)


@dataclass(frozen=True)
class Setting:
    """A setting to try: an option of the losses ``of``, of the recipe, or of the run."""

    name: str
    values: tuple[Any, ...]
    of: tuple[str, ...] = ()

    def applies(self, config: Config) -> bool:
        """Return whether a run has the setting."""
        if self.of:
            return has_term(config.loss, self.of)
        return not self.name.startswith(OF_A_RECIPE) or config.recipe != "standard"

    def put(self, config: Config, value: Any) -> Config:
        """Return the run with another value of the setting."""
        if self.of:
            return config.changed(loss=_set_loss_option(config.loss, self.of, self.name, value))
        if self.name.startswith(OF_A_RECIPE):
            option = self.name.removeprefix(OF_A_RECIPE)
            return config.changed(recipe_options={**config.recipe_options, option: value})
        return config.changed(**{self.name: value})


@dataclass(frozen=True)
class Tuning:
    """A ``tune:`` block."""

    settings: tuple[Setting, ...]
    rule: str = "lowest_ece"
    metric: str = "ece"
    accuracy_lost: float = 0.01
    seeds: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Tuning:
        """Read a block ``tune`` of a suite file."""
        block = check_tune(entry)
        if block.rule not in RULES:
            raise no_such("rule of tune", block.rule, RULES)
        (metric,) = check_metrics([block.metric])
        errors = [name for name in USUAL if higher_is_better(name) is False]
        if metric not in errors:
            raise InputError(f"tune: metric is one of {', '.join(errors)}, found {block.metric!r}")
        return cls(
            settings=tuple(_read_setting(setting) for setting in block.settings),
            rule=block.rule,
            metric=metric,
            accuracy_lost=block.accuracy_lost,
            seeds=tuple(block.seeds),
        )

    def check(self, configs: Sequence[Config]) -> None:
        """Raise an error for a setting that no run has, or a value it cannot take."""
        for setting in self.settings:
            having = [config for config in configs if setting.applies(config)]
            if not having:
                whose = (
                    f"the loss {' or '.join(setting.of)}" if setting.of else "a recipe of its own"
                )
                raise InputError(f"tune: {setting.name} needs {whose}, and no method has that")
            for config in {config.loss + config.recipe: config for config in having}.values():
                for value in setting.values:
                    try:
                        check_names(setting.put(config, value))
                    except InputError as error:
                        weight = "; beta is its weight" * ("has no option" in str(error))
                        raise InputError(f"tune: {error}{weight}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: part of the question that a choice answers."""
        return {
            "rule": self.rule,
            "metric": self.metric,
            "accuracy_lost": self.accuracy_lost,
            "seeds": list(self.seeds),
            "settings": [
                {"name": setting.name, "of": list(setting.of), "values": list(setting.values)}
                for setting in self.settings
            ],
        }


def _read_setting(entry: TunedEntry) -> Setting:
    known = [field.name for field in fields(Config)]
    if not entry.of and not entry.name.startswith(OF_A_RECIPE) and entry.name not in known:
        raise no_such("setting", entry.name, known)
    return Setting(entry.name, tuple(entry.values), tuple(entry.of))


class Step(NamedTuple):
    """A tuned setting: its value, the number of values tried, and the validation figures."""

    setting: str  # as in ``beta of s_avuc``
    value: str
    tried: int
    failed: int
    figures: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class Choice:
    """The choice for one method's runs, which differ in their seed alone."""

    method: str
    config: Config
    rule: str  # as a sentence
    steps: tuple[Step, ...]

    @classmethod
    def of(
        cls,
        method: str,
        config: Config,
        tune: Mapping[str, Any],
        written: Iterable[Mapping[str, Any]],
    ) -> Choice:
        """Read the candidates in a choice's file; ``config`` is that of the chosen runs."""
        steps = tuple(_make_step(step, str(tune["metric"]), config) for step in written)
        return cls(method, config, _describe_rule(tune), steps)


def _make_step(written: Mapping[str, Any], metric: str, config: Config) -> Step:
    candidates = written["candidates"]
    taken: Mapping[str, Any] = next(
        (candidate for candidate in candidates if candidate["value"] == written["chosen"]), {}
    )
    whose = [name for name in written.get("of") or () if has_term(config.loss, [name])]
    return Step(
        setting=" of ".join([str(written["setting"]), *([" and ".join(whose)] if whose else [])]),
        value=str(written["chosen"]),
        tried=len(candidates),
        failed=sum(candidate.get(metric) is None for candidate in candidates),
        figures=tuple((name, taken.get(name)) for name in dict.fromkeys((metric, *BESIDE))),
    )


def _describe_rule(tune: Mapping[str, Any]) -> str:
    count, lost = len(tune["seeds"]), 100 * tune["accuracy_lost"]
    return (
        f"the lowest {label(tune['metric'])} of those at most {lost:g} point{'s' * (lost != 1)} "
        f"of accuracy below the most accurate, by {count} seed{'s' * (count > 1)}, one "
        "setting after another"
    )
