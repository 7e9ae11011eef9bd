"""A fixed sample of what ``make fuzz`` runs, and every case that ever failed."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.harness import CORPUS, check, iterate_targets, read_corpus

TARGETS = list(iterate_targets([]))
SAMPLE = 8_000  # of 100,000 cases, by the targets' shares
TOTAL = sum(target.share for target in TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_outcome_is_a_result_or_an_input_error(target):
    results = []

    @settings(
        max_examples=max(5, SAMPLE * target.share // TOTAL // 10),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.cases)
    def run(case):
        results.append(check(target, case))

    run()
    # A target that refuses everything tests nothing.
    assert any(results) or len(results) < 40


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_cases_that_once_failed_are_refused_or_give_a_result(target):
    for case in read_corpus(target.name):
        check(target, case)


def test_every_stored_case_belongs_to_a_target():
    names = {target.name for target in TARGETS}
    assert {path.stem for path in CORPUS.glob("*.jsonl")} <= names
