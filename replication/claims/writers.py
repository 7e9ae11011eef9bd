"""Format outcomes of claims as Markdown, HTML and plain values."""

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
    "*Reproduced* and *not reproduced*: our runs have the paper's settings. *Seen here* and *not "
    "seen here*: our runs differ in data, network, length, batch, tuning or number of seeds; the "
    "last column says how. *Not decided*: too little evidence, or runs of another method. "
    "The gain is how much better the claim's method is than the others, as the mean of all "
    "comparisons with its 95% interval; % are points. A claim about every comparison holds if each "
    "comparison is clear by itself (paired t-test over seeds, 5%), and fails if one is clearly "
    "against it (after Holm's correction). For a claim that is not decided, “could detect” is "
    "the effect that our runs detect 4 times out of 5; “seeds (or settings) would detect” is the "
    "same for planned runs, by the spread over seeds (or settings) of the runs made so far. GPU "
    "minutes are for the seeds or runs still needed. If no run of a network is timed, they are "
    "estimated by multiply-adds from other networks; deep and thin networks and small batches take "
    "longer."
)


def count_statuses(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count the outcomes of each of the five kinds."""
    return {status: sum(outcome.status == status for outcome in outcomes) for status in STATUSES}


def summarise(outcomes: Sequence[Outcome]) -> str:
    """Write all five counts: ``2 reproduced, 1 not reproduced, ..., of 101 claims``."""
    claims = len({outcome.claim.id for outcome in outcomes})
    text = ", ".join(f"{count} {status}" for status, count in count_statuses(outcomes).items())
    more = "" if claims == len(outcomes) else f" ({len(outcomes)} outcomes, by suite)"
    return f"{text}, of {claims} claims{more}"


def format_markdown(outcomes: Sequence[Outcome]) -> str:
    """Write one Markdown table per paper."""
    lines = [f"{summarise(outcomes)}.", "", LEGEND, ""]
    for paper, own in group_by_paper(outcomes).items():
        lines += [
            f"### {paper}",
            "",
            "| claim | suite | outcome | gain | why | differs from the paper |",
            "|---|---|---|---|---|---|",
        ]
        for outcome in own:
            claim = f"**{outcome.claim.id}**: {outcome.claim.says} ({outcome.claim.where})"
            cells = (
                claim,
                outcome.suite,
                f"**{outcome.status}**",
                format_gain(outcome),
                explain(outcome),
                describe_differences(outcome),
            )
            lines.append(f"| {' | '.join(_escape_pipes(cell) for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def format_html(outcomes: Sequence[Outcome]) -> str:
    """Write one HTML table per paper."""
    parts = [f"<p>{escape(summarise(outcomes))}.</p>"]
    for paper, own in group_by_paper(outcomes).items():
        rows = "".join(
            f'<tr class="{outcome.status.replace(" ", "-")}">'
            f'<th scope="row"><code>{escape(outcome.claim.id)}</code> {escape(outcome.claim.says)} '
            f"<small>{escape(outcome.claim.where)}</small></th>"
            f"<td>{escape(outcome.suite)}</td>"
            f'<td><span class="status">{outcome.status}</span></td>'
            f"<td>{escape(format_gain(outcome))}</td><td>{escape(explain(outcome))}</td>"
            f"<td>{escape(describe_differences(outcome))}</td></tr>\n"
            for outcome in own
        )
        heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
        parts.append(
            '<div class="scroll"><table class="bench claims">'
            f"<caption>{escape(paper)}</caption>"
            f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
        )
    return "\n".join([*parts, f'<p class="legend-line">{escape(LEGEND)}</p>'])


def to_values(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Convert to plain values for JSON and YAML: all five counts, and a mapping per outcome."""
    return {"counts": count_statuses(outcomes), "outcomes": _list_values(outcomes)}


def _list_values(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "id": outcome.claim.id,
            "paper": outcome.claim.paper,
            "where": outcome.claim.where,
            "says": outcome.claim.says,
            "suite": outcome.suite,
            "status": outcome.status,
            "finding": outcome.finding,
            "reason": outcome.reason,
            "differences": list(outcome.conditions.differences),
            "disqualified": list(outcome.conditions.disqualified),
            "metric": outcome.metric,
            "effect": _to_finite(outcome.effect),
            "low": _to_finite(outcome.low),
            "high": _to_finite(outcome.high),
            "pairs": outcome.pairs,
            "for": outcome.tally()[0],
            "against": outcome.tally()[1],
            "open": outcome.tally()[2],
            "missing": list(outcome.missing),
            "absent": list(outcome.absent),
            "detectable": _to_finite(outcome.detectable),
            "detectable_by_seeds": outcome.expected,
            "seeds_needed": outcome.seeds,
            "seeds_out_of_reach": outcome.beyond,
            "gpu_minutes": _to_finite(outcome.minutes),
            "gpu_minutes_estimated": outcome.cost is not None and outcome.cost.estimated,
        }
        for outcome in outcomes
    ]


def format_gain(outcome: Outcome) -> str:
    """Write the gain with its interval: ``ECE +1.06% (0.96 to 1.15), 3 seeds``."""
    if outcome.effect is None:
        return "–"
    write = _get_number_format(outcome)
    text = f"{_label_gain(outcome)} {write(outcome.effect, True)}{_get_unit(outcome)}"
    if outcome.low is not None and outcome.high is not None:
        text += f" ({write(outcome.low, True)} to {write(outcome.high, True)})"
    return f"{text}, {_format_count(outcome)}"


def explain(outcome: Outcome) -> str:
    """Write the reason; for an open claim also the detectable effect and what would decide it."""
    parts = [outcome.reason]
    if outcome.absent and not any(name in outcome.reason for name in outcome.absent):
        parts.append(f"the suite does not have {', '.join(outcome.absent)}")
    if outcome.conditions.disqualified:
        reasons = "; ".join(outcome.conditions.disqualified)
        parts = [f"no evidence: {reasons}", f"for the record: {parts[0]}", *parts[1:]]
    elif outcome.status == NOT_DECIDED:
        parts += _describe_open(outcome)
    return "; ".join(parts)


def describe_differences(outcome: Outcome) -> str:
    """Write how the runs differ from the paper's, or ``as in the paper``."""
    if not outcome.begun:
        return "no runs"
    return "; ".join(outcome.conditions.differences) or "as in the paper"


def group_by_paper(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Group outcomes by paper, in the order of `PAPERS`."""
    groups = {
        paper: [outcome for outcome in outcomes if outcome.claim.paper == paper] for paper in PAPERS
    }
    return {paper: own for paper, own in groups.items() if own}


def _describe_open(outcome: Outcome) -> list[str]:
    if outcome.elsewhere:
        return []
    return [
        _describe_detectable(outcome),
        *_describe_pairs_needed(outcome),
        _describe_cost(outcome),
    ]


def _describe_detectable(outcome: Outcome) -> str:
    """Write the effect that these runs, or the planned ones, detect 4 times out of 5."""
    share = outcome.claim.test.decide == "count"
    if outcome.detectable is None:
        return "too few comparisons to test a share" if share else "spread unknown without runs"
    seen = f"{_get_number_format(outcome)(outcome.detectable, False)}{_get_unit(outcome)}"
    if share:
        seen = f"a share of {outcome.detectable:.0%}"
    pairs = outcome.claim.test.pairs
    return (
        f"{outcome.expected} {pairs} would detect {seen}"
        if outcome.expected
        else f"could detect {seen}"
    )


def _describe_pairs_needed(outcome: Outcome) -> list[str]:
    """Write how many pairs would decide the claim, if known."""
    test = outcome.claim.test
    if outcome.beyond:
        many = f"{MOST:,} times as many networks" if test.correlation else f"{MOST:,} {test.pairs}"
        return [f"more than {many} would be needed for an effect as small as the one seen"]
    if outcome.seeds is None:
        return []
    if not outcome.tested:
        return [f"at least {outcome.seeds} {test.pairs} are needed"]
    return [f"{outcome.seeds} {test.pairs} would decide it"]


def _describe_cost(outcome: Outcome) -> str:
    """Write the GPU time of the runs still needed."""
    if outcome.cost is None:
        return "GPU minutes unknown: no such run is timed"
    if outcome.cost.seconds == 0:
        return "no GPU needed"
    minutes = outcome.cost.minutes
    most = math.ceil(minutes)
    text = f"about {most:,} GPU minute{'s' * (most > 1)}"
    if outcome.beyond:
        text = f"more than {math.floor(minutes):,} GPU minutes"
    return text + ", estimated from other runs" * outcome.cost.estimated


def _get_number_format(outcome: Outcome) -> Callable[[float, bool], str]:
    if outcome.claim.test.correlation:
        return lambda value, signed: f"{value:{'+' * signed}.2f}".replace("-", "−")
    return lambda value, signed: number(outcome.metric, value, signed=signed)


def _label_gain(outcome: Outcome) -> str:
    if not outcome.claim.test.correlation:  # a gain in several metrics is their mean
        return ", ".join(map(label, outcome.claim.test.metrics)) or label(outcome.metric)
    return "z" if outcome.claim.test.against else "r"


def _get_unit(outcome: Outcome) -> str:
    if outcome.claim.test.correlation:
        return ""
    return " s" if parts_of(outcome.metric)[0].endswith("seconds") else unit(outcome.metric)


def _format_count(outcome: Outcome) -> str:
    test = outcome.claim.test
    word = "networks" if test.correlation else test.pairs
    return f"{outcome.pairs} {word if outcome.pairs != 1 else word.removesuffix('s')}"


def _to_finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _escape_pipes(text: str) -> str:
    return text.replace("|", "\\|")
