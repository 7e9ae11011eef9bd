"""Read the sample logs of lm-evaluation-harness (``lm-eval run --log_samples``)."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, first
from calibrant.predictions.arrays import pad_options
from calibrant.predictions.files import Contents, explain_read_errors
from calibrant.predictions.tables import read_json_lines

NORMALISATIONS = ("none", "length", "bytes")
_NAME = re.compile(r"samples_(.+?)(?:_\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?)?")
_LONGEST_START = 1 << 26
# The metric of the harness whose prediction each normalisation makes.
_METRICS = {"none": "acc", "length": "acc_norm", "bytes": "acc_bytes"}


@dataclass
class Question:
    """One document of a task: the log-likelihood of each option, and what else was logged."""

    line: int
    record: dict[str, Any]
    likelihoods: list[float]
    continuations: list[str]

    @property
    def target(self) -> str:
        """Return the answer as the harness wrote it: a number, or the text of an option."""
        return str(self.record.get("target", ""))


def is_harness_log(path: Path) -> bool:
    """Return whether the first line of a ``.jsonl`` is a sample of the harness."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        start = lines.readline(_LONGEST_START)
    try:
        record = json.loads(start)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and {"doc_id", "arguments", "filtered_resps"} <= record.keys()


def read_harness_logs(files: Sequence[Path], normalise: str, extra: Sequence[str]) -> Contents:
    """Read one log for each task: options as logits, the document as the cluster.

    Args:
        files: The logs.
        normalise: ``none``: log-likelihoods, which the harness's ``acc`` compares. ``length`` or
            ``bytes``: divided by the option's characters or bytes, as ``acc_norm`` and
            ``acc_bytes`` do.
        extra: Further columns to return: ``task``, or a field of the samples or their documents.
    """
    if normalise not in NORMALISATIONS:
        raise InputError(
            f"normalise must be one of {', '.join(NORMALISATIONS)}, found {normalise!r}"
        )
    seen: dict[str, Path] = {}
    scores: list[list[float]] = []
    answers: list[int] = []
    ids: list[str] = []
    clusters: list[str] = []
    columns: dict[str, list[Any]] = {name: [] for name in extra}
    for file in files:
        with explain_read_errors(file):
            match = _NAME.fullmatch(file.stem)
            task = match[1] if match else file.stem
            if task in seen:
                raise InputError(
                    f"task {task!r} is in {seen[task].name} too: give the log of one run of each "
                    "task"
                )
            seen[task] = file
            questions = _read_questions(file, task)
            answers += _find_answers(questions, task)
            scores += _normalise(questions, answers[-len(questions) :], normalise, task)
            ids += [f"{task}/{question.record['doc_id']}" for question in questions]
            clusters += [
                str(question.record.get("doc_hash") or name)
                for question, name in zip(questions, ids[-len(questions) :], strict=True)
            ]
            for name, values in columns.items():
                values += [_find_field(question, name, task) for question in questions]
    padded, counts = pad_options(scores, is_logits=True)
    return Contents(
        scores=padded,
        kind="logits",
        labels=np.array(answers, dtype=np.int64),
        ids=np.array(ids),
        clusters=np.array(clusters),
        num_options=counts,
        extra={name: np.array(values, dtype=object) for name, values in columns.items()},
    )


def _read_questions(file: Path, task: str) -> list[Question]:
    """Read the questions of one filter, the first in the log."""
    records = read_json_lines(file)
    wanted = records[0].get("filter")
    questions = []
    for line, record in enumerate(records, start=1):
        if record.get("filter") != wanted:
            continue
        try:
            questions.append(_read_question(line, record))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, InputError):
                raise InputError(f"task {task!r}: {error}") from error
            raise InputError(
                f"line {line} is not a sample of lm-evaluation-harness as it is known here "
                f"({type(error).__name__}: {str(error)[:80]})"
            ) from error
    return questions


def _read_question(line: int, record: dict[str, Any]) -> Question:
    arguments = record["arguments"]
    if isinstance(arguments, dict):  # {"gen_args_0": {"arg_0": context, "arg_1": continuation}}
        arguments = [[argument["arg_0"], argument.get("arg_1")] for argument in arguments.values()]
    responses = record["filtered_resps"]
    if not all(isinstance(response, list) for response in responses) or not all(
        isinstance(argument[1], str) for argument in arguments
    ):
        raise InputError(
            "its samples are generated text, which has no likelihood of options: give verbalised "
            "confidence as events, a table with the columns confidence and correct"
        )
    while responses and isinstance(responses[0][0], list):  # older logs nest once more
        responses = [response[0] for response in responses]
    likelihoods = [float(response[0]) for response in responses]
    continuations = [argument[1] for argument in arguments]
    half = len(arguments) // 2
    if (
        half > 1
        and len(arguments) == 2 * half
        and continuations[:half] == continuations[half:]
        and all(argument[0] == "" for argument in arguments[half:])
        and any(argument[0] != "" for argument in arguments[:half])
    ):
        # acc_mutual_info asks for each option without its context too.
        likelihoods, continuations = likelihoods[:half], continuations[:half]
    if len(likelihoods) != len(continuations):
        raise InputError(
            f"line {line} has {len(likelihoods)} responses for {len(continuations)} requests"
        )
    if len(likelihoods) < 2:
        raise InputError(
            "its samples have one likelihood each, not one for each of several options: only "
            "multiple-choice tasks can be evaluated"
        )
    return Question(line, record, likelihoods, continuations)


def _find_answers(questions: list[Question], task: str) -> list[int]:
    """Return the number of each question's true option.

    The log has the target as text: the number of an option, or the text of one. If both readings
    fit, the one that agrees with the harness's accuracy is taken. If neither fits (the options
    are in the contexts), the accuracy shows the answer of a question with two options.
    """
    ways = [
        [way(question) for question in questions] for way in (_answer_by_number, _answer_by_text)
    ]
    known = [answers for answers in ways if None not in answers]
    agreeing = [answers for answers in known if _count_differences(questions, answers) == 0]
    if agreeing or known:
        answers = (agreeing or known)[0]
        if not agreeing:
            count = _count_differences(questions, answers)
            warnings.warn(
                f"task {task!r}: in {count:,} of {len(questions):,} samples the logged acc is not "
                "what the log-likelihoods and the target give",
                UserWarning,
                stacklevel=2,
            )
        return [answer for answer in answers if answer is not None]
    derived = [_answer_by_accuracy(question) for question in questions]
    if None not in derived:
        return [answer for answer in derived if answer is not None]
    unknown = [all(way[n] is None for way in (*ways, derived)) for n in range(len(questions))]
    bad = questions[unknown.index(True) if any(unknown) else 0]
    options = first((repr(text[:30]) for text in bad.continuations), 4)
    raise InputError(
        f"task {task!r}: the target {bad.target[:60]!r} in line {bad.line} is neither the number "
        f"of an option nor one of the options ({options}), so the true answer is not in the log"
    )


def _answer_by_number(question: Question) -> int | None:
    text = question.target.strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    return number if 0 <= number < len(question.likelihoods) else None


def _answer_by_text(question: Question) -> int | None:
    options = [continuation.strip() for continuation in question.continuations]
    target = question.target.strip()
    return options.index(target) if options.count(target) == 1 else None


def _answer_by_accuracy(question: Question) -> int | None:
    accuracy = question.record.get("acc")
    if accuracy not in (0, 1) or len(question.likelihoods) > 2:
        return None
    predicted = int(np.argmax(question.likelihoods))
    return predicted if accuracy == 1 else 1 - predicted


def _count_differences(
    questions: list[Question],
    answers: Sequence[int | None],
    scores: Callable[[Question], Sequence[float]] = lambda question: question.likelihoods,
    metric: str = "acc",
) -> int:
    """Count the questions where the logged metric is not that of these scores and answers."""
    return sum(
        question.record[metric] in (0, 1)
        and (int(np.argmax(scores(question))) == answer) != question.record[metric]
        for question, answer in zip(questions, answers, strict=True)
        if metric in question.record
    )


def _normalise(
    questions: list[Question], answers: list[int], normalise: str, task: str
) -> list[list[float]]:
    """Divide log-likelihoods by the length of the options, as the harness does.

    The harness measures options without the delimiter before them, which is not in the log: mostly
    one space. If the logged accuracy contradicts that, another common start is tried.
    """
    if normalise == "none":
        return [question.likelihoods for question in questions]
    if all(len(set(question.continuations)) == 1 for question in questions):
        raise InputError(
            f"task {task!r} has its options in the contexts, which the log does not tell from the "
            "rest of the prompt: use normalise='none'"
        )
    texts = [text for question in questions for text in question.continuations]
    common = min(len(text) - len(text.lstrip()) for text in texts)
    starts = sorted(range(common + 1), key=lambda start: (start != 1, start))

    def lengths_after(start: int) -> Callable[[Question], list[float]]:
        def divide(question: Question) -> list[float]:
            options = [text[start:] for text in question.continuations]
            lengths = [len(o.encode()) if normalise == "bytes" else len(o) for o in options]
            return [
                likelihood / max(1, length)
                for likelihood, length in zip(question.likelihoods, lengths, strict=True)
            ]

        return divide

    metric = _METRICS[normalise]
    counts = [_count_differences(questions, answers, lengths_after(n), metric) for n in starts]
    best = int(np.argmin(counts))
    if counts[best]:
        warnings.warn(
            f"task {task!r}: in {counts[best]:,} of {len(questions):,} samples the logged {metric} "
            "is not what the normalised log-likelihoods give",
            UserWarning,
            stacklevel=2,
        )
    divide = lengths_after(starts[best])
    return [divide(question) for question in questions]


def _find_field(question: Question, name: str, task: str) -> Any:
    """Return the task, or a field of a sample or of its document."""
    if name == "task":
        return task
    document = question.record.get("doc")
    fields = {**(document if isinstance(document, dict) else {}), **question.record}
    if name not in fields:
        shown = first(map(repr, ("task", *fields)), 16)
        raise InputError(f"no column is called {name!r}; the samples of task {task!r} have {shown}")
    value = fields[name]
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value)
