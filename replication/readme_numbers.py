"""Numbers of the README from the results: rewritten, or checked not to have drifted.

    python -m replication readme            # rewrite
    python -m replication readme --check    # fail where something would change

What stands between ``<!-- results:KIND option=value ... -->`` and ``<!-- /results -->`` in
README.md and replication/results/README.md is made from the store in ``replication/results/``:

- ``value``: one figure, as ``2.05 ± 0.04``: suite, method, metric, and where they are not
  the usual ones calibrator, part, and settings such as data and model; ``what=mean`` leaves
  the error out, ``what=seeds`` has the figure of each seed;
- ``difference``: how far the mean of ``method`` lies from that of ``against`` (after the same
  calibrator, or after ``to``), without a sign: the rest as for ``value``;
- ``table``: suite, and metrics, methods, calibrators, part (lists with ``;``), down, and the
  settings of the blocks to show;
- ``claims``: how many of the papers' claims hold; ``paper=`` for one paper's table of them;
- ``claim``: id; whether it holds, with ``what=share`` in how many comparisons, as ``7 of 9``, or
  with ``what=gain`` the gain that its outcome names;
- ``best``: suite, metric, calibrator: in how many rows this one of the suite's calibrators has the
  best mean, as ``7 of 9``;
- ``gap``: suite, metric, and settings: the mean over all its runs, or those of ``method``, of a
  figure of ``part`` less that of ``less`` (test and validation rows), with its sign;
- ``runs``: how many runs the store has results of; ``suite=`` for one suite's;
- ``combination``: what `python -m replication combine` chooses for the settings given (data, model,
  epochs, ...), beside cross-entropy and the lowest ECE of each paper's own methods, and whether
  it is below them; ``what=candidates``: among how many that keep enough accuracy, and with every
  seed, it chose; ``what=lowest``: the lowest held-out ECE among those;
  ``what=verdict``: the verdict alone.

Values with spaces are written without them: ``calibrator=temperature(objective=sb_ece)``.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

from calibrant.bench import canonical_name, describe_choice, table
from calibrant.bench.select.combine_report import OURS
from calibrant.bench.tables.formatting import higher_is_better, number, with_error
from calibrant.bench.tables.statistics import mean_of
from replication.claims.writers import markdown, summary
from replication.stored import ROOT, Stored

PAGES = ("README.md", "replication/results/README.md")
MARKER = re.compile(
    r"(?P<begin><!-- results:(?P<kind>\w+)(?P<options>(?: [\w]+=\S+)*) -->)"
    r"(?P<text>.*?)(?P<end><!-- /results -->)",
    re.S,
)
RIVALS = "the five papers"


class Numbers(Stored):
    """Results, with a method for every kind of marker."""

    def seeds(self, *, suite, method, metric, calibrator="none", part="test", **cell):
        """The figure of every seed of one method in one cell."""
        found = self.of(suite)
        values = found.values(metric, calibrator=calibrator, part=part)
        fits = [
            runs
            for (place, name), runs in values.items()
            if name == method and _fits(found, place, cell)
        ]
        if len(fits) != 1:
            raise SystemExit(f"{len(fits)} figures are {method} {metric} {calibrator} {cell}")
        return fits[0]

    def value(self, *, metric, what="all", **asked):
        """One figure over seeds, or that of each."""
        runs = self.seeds(metric=metric, **asked)
        mean = mean_of(list(runs.values()))
        if what == "seeds":
            *most, last = (number(metric, runs[seed]) for seed in sorted(runs))
            return f"{', '.join(most)} and {last}" if most else last
        return (
            number(metric, mean.mean)
            if what == "mean"
            else with_error(metric, mean.mean, mean.error)
        )

    def difference(self, *, metric, method, against, calibrator="none", to=None, **asked):
        """How far one method's mean lies from another's, or one calibrator's, without a sign."""
        one, two = (
            mean_of(
                list(self.seeds(metric=metric, method=name, calibrator=after, **asked).values())
            )
            for name, after in ((method, calibrator), (against, to or calibrator))
        )
        return number(metric, abs(one.mean - two.mean))

    def table(self, *, suite, part="test", down=None, **options):
        """A table of a suite, or of some of its blocks."""
        lists = {
            name: options.pop(name).split(";")
            for name in ("metrics", "methods", "calibrators")
            if name in options
        }
        whole = self.suite(suite)
        shown = table(whole, self.frame, **lists, part=part.split(";"), down=down)
        found = self.of(suite)
        blocks = tuple(block for block in shown.blocks if _fits(found, block.cell, options))
        return f"\n{replace(shown, blocks=blocks).to_markdown().strip()}\n"

    def claims(self, *, paper=None):
        """How many claims hold, or the table of one paper's."""
        chosen = [one for one in self.outcomes if paper in (None, one.claim.paper)]
        return summary(chosen) if paper is None else f"\n{markdown(chosen).strip()}\n"

    def claim(self, *, id, what="status"):
        """What is said of one claim."""
        says = {
            "status": lambda one: one.status,
            "share": lambda one: "".join(re.findall(r"\d+ of \d+", one.reason)[:1]),
            "gain": lambda one: "" if one.effect is None else number(one.metric, one.effect),
        }
        if what not in says:
            raise SystemExit(f"results:claim what={what} is none of {', '.join(says)}")
        found = {says[what](one) for one in self.outcomes if one.claim.id == id}
        if len(found) != 1 or "" in found:
            raise SystemExit(f"results:claim id={id} what={what}: {sorted(found) or 'none'} found")
        return found.pop()

    def best(self, *, suite, metric, calibrator):
        """How often a calibrator has the best mean, of those the suite names."""
        found = self.of(suite)
        specs = [spec for _, spec in self.suite(suite).specs]
        asked = {canonical_name(name) for spec in specs for name in spec.calibrators}
        means = {}
        for name in sorted(asked):
            for place, runs in found.values(metric, calibrator=name).items():
                means.setdefault(place, {})[name] = mean_of(list(runs.values())).mean
        pick = max if higher_is_better(metric) else min
        if calibrator not in asked or not means:
            raise SystemExit(f"results:best: no {metric} of {calibrator} in {suite}")
        won = sum(pick(row, key=row.__getitem__) == calibrator for row in means.values())
        return f"{won} of {len(means)}"

    def gap(self, *, suite, metric, part="test", less="validation", method=None, **cell):
        """How much one part's figures lie above another's, in the mean over runs."""
        found = self.of(suite)
        here, there = (found.values(metric, part=name) for name in (part, less))
        gaps = [
            value - there[place][seed]
            for place, runs in here.items()
            for seed, value in runs.items()
            if _fits(found, place[0], cell)
            and method in (None, place[1])
            and seed in there.get(place, {})
        ]
        if not gaps:
            raise SystemExit(f"results:gap: no {metric} of {part} and {less} in {suite} {cell}")
        mean = mean_of(gaps).mean
        return ("+" if mean > 0 else "−") + number(metric, abs(mean))

    def runs(self, *, suite=None, what="all"):
        """How many runs there are, of a suite or of all; ``trained``, or ``split`` from a file."""
        if suite is None:
            tests = self.frame[self.frame["part"] == "test"].drop_duplicates("key")
            split = [json.loads(one).get("logits") is not None for one in tests["config"]]
            count = {"all": len(split), "trained": len(split) - sum(split), "split": sum(split)}
            return f"{count[what]:,}"
        found = self.of(suite)
        return f"{len(found.done):,} of {len(found.plan):,}"

    def combination(self, what="table", **settings):
        """A table of one choice, and the verdict on it; or how many there were to choose from."""
        found = [
            (choice, frame)
            for choice, frame in self.combinations
            if all(str(choice["protocol"].get(name)) == value for name, value in settings.items())
        ]
        if len(found) != 1:
            raise SystemExit(f"results:combination {settings}: {len(found)} protocols fit, not one")
        ((choice, frame),) = found
        if what != "table":
            allowed = _allowed(choice)
            says = {
                "candidates": f"{len(allowed):,}",
                "lowest": number("ece", min(allowed)),
                "verdict": describe_choice(frame, RIVALS),
            }
            if what not in says:
                raise SystemExit(f"results:combination what={what} is none of {', '.join(says)}")
            return says[what]
        ours = frame["who"].isin(OURS)
        lowest = frame[~ours].sort_values("ece").drop_duplicates("who")
        rows = [*frame[ours].to_dict("records"), *lowest.to_dict("records")]
        chance = any(math.isfinite(row["chance_ece"]) for row in rows)
        heads = ["", "trained with", "then", "accuracy, %", "NLL", "ECE, %", "by chance, %"]
        lines = [f"| {' | '.join(heads[: 6 + chance])} |", f"|{'---|' * 3}{'---:|' * (3 + chance)}"]
        for row in rows:
            extra = [row[name] for name in ("recipe", "average") if row[name] not in USUAL]
            then = "–" if row["calibrator"] == "none" else f"`{row['calibrator']}`"
            by_chance = row["chance_ece"]
            cells = [
                row["who"],
                ", ".join(f"`{one}`" for one in (row["loss"], *extra)),
                then,
                f"{100 * row['accuracy']:.2f} ± {100 * row['accuracy_error']:.2f}",
                f"{row['nll']:.4f} ± {row['nll_error']:.4f}",
                f"{100 * row['ece']:.2f} ± {100 * row['ece_error']:.2f}",
                f"{100 * by_chance:.2f}" if math.isfinite(by_chance) else "–",
            ]
            lines.append(f"| {' | '.join(cells[: 6 + chance])} |")
        return "\n" + "\n".join(lines) + f"\n\n{describe_choice(frame, RIVALS)}\n"


def _allowed(choice):
    """Held-out ECE of candidates with every seed of plain training and enough of its accuracy."""
    plain = choice["plain"]
    seeds = plain["keys"].keys()
    least = sum(plain["accuracy"].values()) / len(seeds) - choice["accuracy_lost"] - 1e-9
    return [
        sum(one["ece"][seed] for seed in seeds) / len(seeds)
        for one in choice["candidates"]
        if seeds <= one["keys"].keys()
        and sum(one["accuracy"][seed] for seed in seeds) / len(seeds) >= least
    ]


USUAL = ("standard", "none")  # a recipe and an average not worth a word
KINDS = ("value", "difference", "table", "claims", "claim", "best", "gap", "runs", "combination")


def _fits(found, cell, settings):
    return all(str(found.setting(cell, name)) == value for name, value in settings.items())


def rewrite(text: str, results: Numbers) -> str:
    """The page with every marked stretch made anew."""

    def made(found):
        if found["kind"] not in KINDS:
            raise SystemExit(f"results:{found['kind']} is none of {', '.join(KINDS)}")
        options = dict(one.split("=", 1) for one in found["options"].split())
        return found["begin"] + getattr(results, found["kind"])(**options) + found["end"]

    return MARKER.sub(made, text)


def rewrite_pages(root: Path = ROOT, *, check: bool = False) -> int:
    """Rewrite the numbers of every page; return 1 if ``check`` finds one that would change.

    Args:
        root: the folder of README.md and replication/. Default: that of the checkout.
        check: change nothing. Default: False.
    """
    results, drifted = Numbers(root / "replication" / "results"), []
    for name in PAGES:
        path = root / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        if before.count("<!-- results:") != len(MARKER.findall(before)):
            raise SystemExit(f"{name}: a results marker is not closed, or has unknown options")
        if not MARKER.search(before):
            continue
        after = rewrite(before, results)
        if after != before:
            drifted.append(name)
            if not check:
                path.write_text(after, encoding="utf-8", newline="\n")
    change = "drifted from the results" if check else "rewritten"
    lines = [f"{name}: {change}" for name in drifted]
    print("\n".join(lines) or "all numbers are those of the results")
    return int(check and bool(drifted))
