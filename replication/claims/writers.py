"""Outcomes of claims as Markdown, as HTML and as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from calibrant.bench.tables.formatting import label, number, parts_of, unit
from replication.claims.outcome import NOT_DECIDED, STATUSES, Outcome
from replication.claims.power_analysis import MOST
from replication.published import PAPERS

HEADS = ("claim", "suite", "outcome", "gain", "why", "differs from the paper")
LEGEND = (
    "*Reproduced* and *not reproduced*: our runs were made as the paper made its own. *Seen here* "
    "and *not seen here*: they differ in data, network, length, batch, tuning or number of seeds, "
    "as the last column says. *Not decided*: too little evidence, or runs of another method. "
    "The gain is what the claim's method gains over the others, in the claim's direction, with "
    "its 95% interval over the mean of all comparisons; % are points. A claim about every "
    "comparison holds where each is clear by itself (paired t-test over seeds, 5%), and fails "
    "where one is clearly against it (after Holm's correction). Of one that is not decided, "
    "“would have seen” is the effect that our runs show 4 times out of 5, “seeds (or settings) "
    "would show” the same of runs still to be made, by the spread over seeds (or settings) of "
    "those made so far, and the GPU minutes are those of the seeds or runs still needed. Where no "
    "run of a network is timed they are an estimate by the multiply-adds of those that are; deep "
    "and thin networks, and small batches, take longer than that."
)


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many outcomes there are of each of the five kinds."""
    return {status: sum(one.status == status for one in outcomes) for status in STATUSES}


def summary(outcomes: Sequence[Outcome]) -> str:
    """All five counts: ``2 reproduced, 1 not reproduced, 30 seen here, ... of 101 claims``."""
    claims = len({one.claim.id for one in outcomes})
    text = ", ".join(f"{count} {status}" for status, count in counts(outcomes).items())
    more = "" if claims == len(outcomes) else f" ({len(outcomes)} outcomes, by suite)"
    return f"{text}, of {claims} claims{more}"


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A table a paper."""
    lines = [f"{summary(outcomes)}.", ""]
    for paper, own in by_paper(outcomes).items():
        lines += [
            f"### {paper}",
            "",
            "| claim | suite | outcome | gain | why | differs from the paper |",
            "|---|---|---|---|---|---|",
        ]
        for one in own:
            claim = f"**{one.claim.id}**: {one.claim.says} ({one.claim.where})"
            cells = (claim, one.suite, f"**{one.status}**", gain(one), why(one), differs(one))
            lines.append(f"| {' | '.join(_piped(cell) for cell in cells)} |")
        lines.append("")
    return "\n".join([*lines, LEGEND, ""])


def html(outcomes: Sequence[Outcome]) -> str:
    """The same as tables of HTML."""
    parts = [f"<p>{escape(summary(outcomes))}.</p>"]
    for paper, own in by_paper(outcomes).items():
        rows = "".join(
            f'<tr class="{one.status.replace(" ", "-")}">'
            f'<th scope="row"><code>{escape(one.claim.id)}</code> {escape(one.claim.says)} '
            f"<small>{escape(one.claim.where)}</small></th>"
            f"<td>{escape(one.suite)}</td>"
            f'<td><span class="status">{one.status}</span></td>'
            f"<td>{escape(gain(one))}</td><td>{escape(why(one))}</td>"
            f"<td>{escape(differs(one))}</td></tr>\n"
            for one in own
        )
        heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
        parts.append(
            '<div class="scroll"><table class="bench claims">'
            f"<caption>{escape(paper)}</caption>"
            f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
        )
    return "\n".join([*parts, f'<p class="legend-line">{escape(LEGEND)}</p>'])


def values(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Plain values, as JSON and YAML take them: all five counts, and one mapping an outcome."""
    return {"counts": counts(outcomes), "outcomes": _plain_outcomes(outcomes)}


def _plain_outcomes(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "id": one.claim.id,
            "paper": one.claim.paper,
            "where": one.claim.where,
            "says": one.claim.says,
            "suite": one.suite,
            "status": one.status,
            "finding": one.finding,
            "reason": one.reason,
            "differences": list(one.conditions.differences),
            "disqualified": list(one.conditions.disqualified),
            "metric": one.metric,
            "effect": _plain(one.effect),
            "low": _plain(one.low),
            "high": _plain(one.high),
            "pairs": one.pairs,
            "for": one.tally()[0],
            "against": one.tally()[1],
            "open": one.tally()[2],
            "missing": list(one.missing),
            "absent": list(one.absent),
            "detectable": _plain(one.detectable),
            "detectable_by_seeds": one.expected,
            "seeds_needed": one.seeds,
            "seeds_out_of_reach": one.beyond,
            "gpu_minutes": _plain(one.minutes),
            "gpu_minutes_estimated": one.cost is not None and one.cost.estimated,
        }
        for one in outcomes
    ]


def gain(outcome: Outcome) -> str:
    """``ECE +1.06% (0.96 to 1.15), 3 seeds``."""
    if outcome.effect is None:
        return "–"
    write = _number(outcome)
    text = f"{_label(outcome)} {write(outcome.effect, True)}{_unit(outcome)}"
    if outcome.low is not None and outcome.high is not None:
        text += f" ({write(outcome.low, True)} to {write(outcome.high, True)})"
    return f"{text}, {_count(outcome)}"


def why(outcome: Outcome) -> str:
    """The reason, and for an open one what we could have seen and what would decide it."""
    parts = [outcome.reason]
    if outcome.absent and not any(name in outcome.reason for name in outcome.absent):
        parts.append(f"the suite does not have {', '.join(outcome.absent)}")
    if outcome.conditions.disqualified:
        reasons = "; ".join(outcome.conditions.disqualified)
        parts = [f"no evidence: {reasons}", f"for the record: {parts[0]}", *parts[1:]]
    elif outcome.status == NOT_DECIDED:
        parts += _open(outcome)
    return "; ".join(parts)


def differs(outcome: Outcome) -> str:
    """How the runs differ from the paper's; ``as in the paper`` where they do not."""
    if not outcome.begun:
        return "no runs"
    return "; ".join(outcome.conditions.differences) or "as in the paper"


def by_paper(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes in the order of the papers."""
    found = {paper: [one for one in outcomes if one.claim.paper == paper] for paper in PAPERS}
    return {paper: own for paper, own in found.items() if own}


def _open(outcome: Outcome) -> list[str]:
    if outcome.elsewhere:
        return []
    return [_seen(outcome), *_pairs(outcome), _minutes(outcome)]


def _seen(outcome: Outcome) -> str:
    """The effect that these runs, or those planned, show 4 times of 5."""
    share = outcome.claim.test.decide == "count"
    if outcome.detectable is None:
        return "too few comparisons to show a share" if share else "no run yet tells the spread"
    seen = f"{_number(outcome)(outcome.detectable, False)}{_unit(outcome)}"
    if share:
        seen = f"a share of {outcome.detectable:.0%}"
    pairs = outcome.claim.test.pairs
    return (
        f"{outcome.expected} {pairs} would show {seen}"
        if outcome.expected
        else f"would have seen {seen}"
    )


def _pairs(outcome: Outcome) -> list[str]:
    """How many pairs would decide it, where that is known."""
    test = outcome.claim.test
    if outcome.beyond:
        many = f"{MOST:,} times as many networks" if test.correlation else f"{MOST:,} {test.pairs}"
        return [f"more than {many} would be needed for an effect as small as the one seen"]
    if outcome.seeds is None:
        return []
    if not outcome.tested:
        return [f"at least {outcome.seeds} {test.pairs} are needed"]
    return [f"{outcome.seeds} {test.pairs} would decide it"]


def _minutes(outcome: Outcome) -> str:
    """What that takes of a GPU."""
    if outcome.cost is None:
        return "GPU minutes not known, no such run is timed"
    if outcome.cost.seconds == 0:
        return "no GPU needed"
    minutes = outcome.cost.minutes
    most = math.ceil(minutes)
    told = f"about {most:,} GPU minute{'s' * (most > 1)}"
    if outcome.beyond:
        told = f"more than {math.floor(minutes):,} GPU minutes"
    return told + ", by the work of other runs" * outcome.cost.estimated


def _number(outcome: Outcome) -> Callable[[float, bool], str]:
    if outcome.claim.test.correlation:
        return lambda value, signed: f"{value:{'+' * signed}.2f}".replace("-", "−")
    return lambda value, signed: number(outcome.metric, value, signed=signed)


def _label(outcome: Outcome) -> str:
    if not outcome.claim.test.correlation:  # a gain in several is the mean of all
        return ", ".join(map(label, outcome.claim.test.metrics)) or label(outcome.metric)
    return "z" if outcome.claim.test.against else "r"


def _unit(outcome: Outcome) -> str:
    if outcome.claim.test.correlation:
        return ""
    return " s" if parts_of(outcome.metric)[0].endswith("seconds") else unit(outcome.metric)


def _count(outcome: Outcome) -> str:
    test = outcome.claim.test
    word = "networks" if test.correlation else test.pairs
    return f"{outcome.pairs} {word if outcome.pairs != 1 else word.removesuffix('s')}"


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _piped(text: str) -> str:
    return text.replace("|", "\\|")
