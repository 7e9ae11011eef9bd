"""Write the results' numbers into the README pages, or check that they are current.

    python -m replication readme            # rewrite
    python -m replication readme --check    # fail if a number would change

The text between ``<!-- results:KIND option=value ... -->`` and ``<!-- /results -->`` in README.md,
docs/explanation/papers.md, replication/results/README.md and its pages is made from the store in
``replication/results/``. Kinds:

- ``value``: a figure such as ``2.05 ± 0.04``. Options: suite, method, metric; calibrator, part and
  settings such as data and model if they are not the usual ones. ``what=mean`` leaves out the
  error; ``what=seeds`` writes the figure of each seed;
- ``difference``: the absolute difference between the means of ``method`` and ``against``, after the
  same calibrator, or ``against`` after ``to``. Other options as for ``value``;
- ``table``: a table of a suite. Options: suite; metrics, methods, calibrators, part (lists with
  ``;``); down; the settings of the blocks to show;
- ``claims``: the counts of the claims' outcomes; ``paper=`` writes that paper's table, or with
  ``what=counts`` its counts;
- ``claim``: the outcome of the claim ``id``. ``what=share`` writes the share of comparisons, such
  as ``7 of 9``; ``what=gain`` writes the gain;
- ``best``: the number of rows in which ``calibrator`` has the best mean among the suite's
  calibrators, such as ``7 of 9``. Options: suite, metric, calibrator;
- ``gap``: the signed mean over runs of the figure on ``part`` (test) minus the figure on ``less``
  (validation). Options: suite, metric, settings; ``method`` for the runs of one method;
- ``runs``: the number of runs in the store; ``suite=`` for one suite;
- ``combination``: the choice of `python -m replication combine` for the given settings (data,
  model, epochs, ...), beside cross-entropy and the lowest ECE of each paper's own methods, with
  the verdict. ``what=candidates`` writes the number of candidates with every seed and enough
  accuracy; ``what=lowest`` their lowest held-out ECE; ``what=verdict`` the verdict alone.

Write values without spaces: ``calibrator=temperature(objective=sb_ece)``.
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
from replication.claims.writers import format_markdown, summarise
from replication.stored import ROOT, StoredResults

PAGES = (
    "README.md",
    "docs/explanation/papers.md",
    "replication/results/README.md",
    "replication/results/pages/*.md",
)
MARKER = re.compile(
    r"(?P<begin><!-- results:(?P<kind>\w+)(?P<options>(?: [\w]+=\S+)*) -->)"
    r"(?P<text>.*?)(?P<end><!-- /results -->)",
    re.S,
)
RIVALS = "the five papers"


class PageNumbers(StoredResults):
    """Write the text of every kind of marker from the results."""

    def find_seeds(self, *, suite, method, metric, calibrator="none", part="test", **cell):
        """Find the figure of every seed of one method in one cell."""
        results = self.get_results(suite)
        values = results.values(metric, calibrator=calibrator, part=part)
        fits = [
            runs
            for (place, name), runs in values.items()
            if name == method and _fits(results, place, cell)
        ]
        if len(fits) != 1:
            raise SystemExit(
                f"{len(fits)} figures match {method} {metric} {calibrator} {cell}, not one"
            )
        return fits[0]

    def write_value(self, *, metric, what="all", **asked):
        """Write the mean over seeds, or the figure of each seed."""
        runs = self.find_seeds(metric=metric, **asked)
        mean = mean_of(list(runs.values()))
        if what == "seeds":
            *most, last = (number(metric, runs[seed]) for seed in sorted(runs))
            return f"{', '.join(most)} and {last}" if most else last
        return (
            number(metric, mean.mean)
            if what == "mean"
            else with_error(metric, mean.mean, mean.error)
        )

    def write_difference(self, *, metric, method, against, calibrator="none", to=None, **asked):
        """Write the absolute difference between the means of two methods or calibrators."""
        first, second = (
            mean_of(
                list(
                    self.find_seeds(metric=metric, method=name, calibrator=after, **asked).values()
                )
            )
            for name, after in ((method, calibrator), (against, to or calibrator))
        )
        return number(metric, abs(first.mean - second.mean))

    def write_table(self, *, suite, part="test", down=None, **options):
        """Write a table of a suite, or of some of its blocks."""
        lists = {
            name: options.pop(name).split(";")
            for name in ("metrics", "methods", "calibrators")
            if name in options
        }
        whole = self.read_suite(suite)
        shown = table(whole, self.frame, **lists, part=part.split(";"), down=down)
        results = self.get_results(suite)
        blocks = tuple(block for block in shown.blocks if _fits(results, block.cell, options))
        return f"\n{replace(shown, blocks=blocks).to_markdown().strip()}\n"

    def write_claims(self, *, paper=None, what="table"):
        """Write the counts of outcomes, or one paper's table."""
        chosen = [outcome for outcome in self.outcomes if paper in (None, outcome.claim.paper)]
        if paper is None or what == "counts":
            return summarise(chosen)
        return f"\n{format_markdown(chosen).strip()}\n"

    def write_claim(self, *, id, what="status"):
        """Write the status, share or gain of one claim."""
        says = {
            "status": lambda outcome: outcome.status,
            "share": lambda outcome: "".join(re.findall(r"\d+ of \d+", outcome.reason)[:1]),
            "gain": lambda outcome: (
                "" if outcome.effect is None else number(outcome.metric, outcome.effect)
            ),
        }
        if what not in says:
            raise SystemExit(f"results:claim what={what} is none of {', '.join(says)}")
        texts = {says[what](outcome) for outcome in self.outcomes if outcome.claim.id == id}
        if len(texts) != 1 or "" in texts:
            raise SystemExit(f"results:claim id={id} what={what}: found {sorted(texts) or 'none'}")
        return texts.pop()

    def write_best(self, *, suite, metric, calibrator):
        """Write how often a calibrator has the best mean among those of the suite."""
        results = self.get_results(suite)
        specs = [spec for _, spec in self.read_suite(suite).specs]
        asked = {canonical_name(name) for spec in specs for name in spec.calibrators}
        means = {}
        for name in sorted(asked):
            for place, runs in results.values(metric, calibrator=name).items():
                means.setdefault(place, {})[name] = mean_of(list(runs.values())).mean
        pick = max if higher_is_better(metric) else min
        if calibrator not in asked or not means:
            raise SystemExit(f"results:best: no {metric} of {calibrator} in {suite}")
        won = sum(pick(row, key=row.__getitem__) == calibrator for row in means.values())
        return f"{won} of {len(means)}"

    def write_gap(self, *, suite, metric, part="test", less="validation", method=None, **cell):
        """Write the mean over runs of one part's figures minus another's."""
        results = self.get_results(suite)
        here, base = (results.values(metric, part=name) for name in (part, less))
        gaps = [
            value - base[place][seed]
            for place, runs in here.items()
            for seed, value in runs.items()
            if _fits(results, place[0], cell)
            and method in (None, place[1])
            and seed in base.get(place, {})
        ]
        if not gaps:
            raise SystemExit(f"results:gap: no {metric} of {part} and {less} in {suite} {cell}")
        mean = mean_of(gaps).mean
        return ("+" if mean > 0 else "−") + number(metric, abs(mean))

    def write_runs(self, *, suite=None, what="all"):
        """Write the number of runs of a suite or of all: ``trained``, or ``split`` from a file."""
        if suite is None:
            tests = self.frame[self.frame["part"] == "test"].drop_duplicates("key")
            split = [json.loads(config).get("logits") is not None for config in tests["config"]]
            count = {"all": len(split), "trained": len(split) - sum(split), "split": sum(split)}
            return f"{count[what]:,}"
        results = self.get_results(suite)
        return f"{len(results.done):,} of {len(results.plan):,}"

    def write_combination(self, what="table", **settings):
        """Write the table of one choice and its verdict, or what ``what`` names."""
        fitting = [
            (choice, frame)
            for choice, frame in self.combinations
            if all(str(choice["protocol"].get(name)) == value for name, value in settings.items())
        ]
        if len(fitting) != 1:
            raise SystemExit(
                f"results:combination {settings}: {len(fitting)} protocols match, not one"
            )
        ((choice, frame),) = fitting
        if what != "table":
            allowed = _list_allowed_errors(choice)
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
                ", ".join(f"`{text}`" for text in (row["loss"], *extra)),
                then,
                f"{100 * row['accuracy']:.2f} ± {100 * row['accuracy_error']:.2f}",
                f"{row['nll']:.4f} ± {row['nll_error']:.4f}",
                f"{100 * row['ece']:.2f} ± {100 * row['ece_error']:.2f}",
                f"{100 * by_chance:.2f}" if math.isfinite(by_chance) else "–",
            ]
            lines.append(f"| {' | '.join(cells[: 6 + chance])} |")
        return "\n" + "\n".join(lines) + f"\n\n{describe_choice(frame, RIVALS)}\n"


def _list_allowed_errors(choice):
    """List the held-out ECE of candidates with every seed and enough accuracy."""
    plain = choice["plain"]
    seeds = plain["keys"].keys()
    least = sum(plain["accuracy"].values()) / len(seeds) - choice["accuracy_lost"] - 1e-9
    return [
        sum(candidate["ece"][seed] for seed in seeds) / len(seeds)
        for candidate in choice["candidates"]
        if seeds <= candidate["keys"].keys()
        and sum(candidate["accuracy"][seed] for seed in seeds) / len(seeds) >= least
    ]


USUAL = ("standard", "none")  # a recipe and an average that the table leaves out
KINDS = ("value", "difference", "table", "claims", "claim", "best", "gap", "runs", "combination")


def _fits(results, cell, settings):
    return all(str(results.setting(cell, name)) == value for name, value in settings.items())


def rewrite(text: str, results: PageNumbers) -> str:
    """Rewrite the text of every marker in a page."""

    def replace_marker(marker):
        if marker["kind"] not in KINDS:
            raise SystemExit(f"results:{marker['kind']} is none of {', '.join(KINDS)}")
        options = dict(option.split("=", 1) for option in marker["options"].split())
        return (
            marker["begin"] + getattr(results, f"write_{marker['kind']}")(**options) + marker["end"]
        )

    return MARKER.sub(replace_marker, text)


def rewrite_pages(root: Path = ROOT, *, check: bool = False) -> int:
    """Rewrite the numbers in every page; return 1 if ``check`` finds a page that would change.

    Args:
        root: folder with README.md and replication/. Default: this checkout.
        check: change nothing. Default: False.
    """
    results, drifted = PageNumbers(root / "replication" / "results"), []
    for path in sorted({path for pattern in PAGES for path in root.glob(pattern)}):
        name = path.relative_to(root).as_posix()
        before = path.read_text(encoding="utf-8")
        if before.count("<!-- results:") != len(MARKER.findall(before)):
            raise SystemExit(f"{name}: a results marker is not closed or has malformed options")
        if not MARKER.search(before):
            continue
        after = rewrite(before, results)
        if after != before:
            drifted.append(name)
            if not check:
                path.write_text(after, encoding="utf-8", newline="\n")
    change = "drifted from the results" if check else "rewritten"
    lines = [f"{name}: {change}" for name in drifted]
    print("\n".join(lines) or "all numbers match the results")
    return int(check and bool(drifted))
