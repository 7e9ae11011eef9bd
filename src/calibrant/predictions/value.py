"""`Predictions`, the value that flows through everything: scores and labels."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import Array, as_numpy, refuse_half_characters
from calibrant.predictions import arrays
from calibrant.predictions.checks import check_labels, check_scores
from calibrant.predictions.columns import ColumnNames, match_class_names
from calibrant.predictions.files import (
    Contents,
    FileScores,
    Paths,
    agree_kind,
    explain_read_errors,
    iterate_scores,
)
from calibrant.predictions.split import split_clusters, split_rows

TASKS = ("classes", "events", "multilabel")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictions:
    """The scores of a model on N rows, and what happened.

    Make one with ``from_logits``, ``from_probs``, ``from_events``, ``from_options``,
    ``from_multilabel``, ``from_model`` or ``read``: the caller says what the numbers are, nothing
    guesses. Torch stays torch and NumPy
    stays NumPy; arrays are copied only where needed and the caller's arrays never change. Shapes
    and types are always checked, values unless ``validate=False``.

    Args:
        scores: Logits or probabilities of shape (N,K); or (N,), a binary classifier's score of
            class 1; or (N,K,...), dense.
        labels: Integer labels of shape (N,), or (N,...) if dense; None if they are not known.
        is_logits: Whether the scores are logits (else probabilities).
        class_names: K different names; of L labels if ``task`` is ``"multilabel"``.
        ids: A whole number or text for each row.
        ignore_index: The label of rows, or pixels, that do not count.
        name: The name shown in reports.
        task: ``"classes"``: one class a row. ``"events"``: one probability a row, and whether the
            event happened (1) or not (0). ``"multilabel"``: L labels a row, each 0, 1 or −1
            (missing).
        event: What the probability of an event, or of the positive class, is the probability of.
        weights: A positive sampling or importance weight for each row, free of scale. Frequency
            weights are not meant: repeat the rows.
        clusters: The cluster of each row, such as its patient: rows of a cluster are alike, and
            intervals and tests take whole clusters as the unit.
        num_options: The number of options of each row, where rows have different numbers;
            absent options have a logit of −inf, or probability 0.

    >>> import numpy as np
    >>> logits = np.array([[2.0, 0.1, -1.0], [0.3, 0.2, 0.9]])
    >>> Predictions.from_logits(logits, np.array([0, 2]), name="tiny")
    Predictions('tiny': 2 rows, 3 classes, logits, numpy float64)
    """

    scores: torch.Tensor | npt.NDArray[Any] | FileScores
    labels: torch.Tensor | npt.NDArray[Any] | None
    is_logits: bool = field(kw_only=True)
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)
    ids: npt.NDArray[Any] | None = field(default=None, kw_only=True)
    ignore_index: int | None = field(default=None, kw_only=True)
    name: str = field(default="predictions", kw_only=True)
    task: str = field(default="classes", kw_only=True)
    event: str | None = field(default=None, kw_only=True)
    weights: npt.NDArray[np.float64] | None = field(default=None, kw_only=True)
    clusters: npt.NDArray[Any] | None = field(default=None, kw_only=True)
    num_options: npt.NDArray[np.int64] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, found {self.task!r}")
        if isinstance(self.event, str):
            refuse_half_characters([self.event], "event=")
        what = "logits" if self.is_logits else "probabilities"
        scores = arrays.as_scores(self.scores, what, one_column=self.task == "multilabel")
        if self.task != "classes":
            _check_task_shape(tuple(scores.shape), self.task)
        num_rows, num_classes = scores.shape[0], 2 if scores.ndim == 1 else scores.shape[1]
        for key, value in (
            # A file's name may hold what is no text.
            ("name", str(self.name).encode(errors="replace").decode()),
            ("scores", scores),
            ("labels", self._as_labels(scores)),
            ("weights", arrays.as_weights(self.weights, num_rows)),
            ("clusters", arrays.as_clusters(self.clusters, num_rows)),
            ("class_names", arrays.as_class_names(self.class_names, num_classes)),
            ("ids", arrays.as_ids(self.ids, num_rows)),
            ("num_options", arrays.as_num_options(self.num_options, tuple(scores.shape))),
            (
                "ignore_index",
                arrays.as_ignore_index(self.ignore_index) if self.task == "classes" else -1,
            ),
        ):
            object.__setattr__(self, key, value)  # frozen for everyone else

    def _as_labels(self, scores: Array | FileScores) -> Array | None:
        if self.labels is None:
            return None
        if self.task == "classes":
            return arrays.as_labels(self.labels, scores)
        what = "outcomes" if self.task == "events" else "labels"
        outcomes = arrays.as_outcomes(self.labels, tuple(scores.shape), what)
        if isinstance(scores, torch.Tensor):
            return torch.from_numpy(outcomes).to(scores.device)
        return outcomes

    @classmethod
    def from_logits(
        cls,
        logits: object,
        labels: object,
        *,
        class_names: Sequence[str] | None = None,
        ids: object = None,
        ignore_index: int | None = None,
        name: str = "predictions",
        validate: bool = True,
        weights: object = None,
        clusters: object = None,
    ) -> Predictions:
        """Make predictions from logits: unnormalised scores, or log-probabilities.

        Args:
            logits: Floating-point array or tensor of shape (N,K), (N,) or (N,K,...).
            labels: Integer labels of shape (N,), or (N,...) if dense; None if not known.
            class_names: K different names. Default: None (ours: classes go by number).
            ids: A whole number or text for each row. Default: None (ours: rows go by number).
            ignore_index: The label of rows that do not count. Default: None (ours: all count).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
            weights: A positive sampling or importance weight for each row. Default: None (ours:
                rows count the same).
            clusters: The cluster of each row, such as its patient. Default: None (ours: rows are
                independent).
        """
        return cls._build(
            logits,
            labels,
            validate=validate,
            is_logits=True,
            class_names=class_names,
            ids=ids,
            ignore_index=ignore_index,
            name=name,
            weights=weights,
            clusters=clusters,
        )

    @classmethod
    def from_probs(
        cls,
        probs: object,
        labels: object,
        *,
        class_names: Sequence[str] | None = None,
        ids: object = None,
        ignore_index: int | None = None,
        name: str = "predictions",
        validate: bool = True,
        weights: object = None,
        clusters: object = None,
    ) -> Predictions:
        """Make predictions from probabilities in [0, 1] that sum to one in each row.

        Args:
            probs: Floating-point array or tensor of shape (N,K), (N,) or (N,K,...).
            labels: Integer labels of shape (N,), or (N,...) if dense; None if not known.
            class_names: K different names. Default: None (ours: classes go by number).
            ids: A whole number or text for each row. Default: None (ours: rows go by number).
            ignore_index: The label of rows that do not count. Default: None (ours: all count).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
            weights: A positive sampling or importance weight for each row. Default: None (ours:
                rows count the same).
            clusters: The cluster of each row, such as its patient. Default: None (ours: rows are
                independent).
        """
        return cls._build(
            probs,
            labels,
            validate=validate,
            is_logits=False,
            class_names=class_names,
            ids=ids,
            ignore_index=ignore_index,
            name=name,
            weights=weights,
            clusters=clusters,
        )

    @classmethod
    def from_events(
        cls,
        probability: object,
        happened: object,
        *,
        event: str = "event",
        is_logits: bool = False,
        ids: object = None,
        name: str = "predictions",
        validate: bool = True,
        weights: object = None,
        clusters: object = None,
    ) -> Predictions:
        """Make predictions from the probability of an event in each row, and whether it happened.

        Nothing is folded at 0.5: a confidence of 30% that was right is an event of 30% that
        happened.

        Args:
            probability: Floating-point array or tensor of shape (N,), in [0, 1].
            happened: Whether it did: 0 or 1, or truth values, shape (N,); None if not known.
            event: What may happen. ``"correct"`` for pairs of a confidence and whether the answer
                was correct. Default: 'event' (ours).
            is_logits: Whether ``probability`` holds logits. Default: False (ours).
            ids: A whole number or text for each row. Default: None (ours: rows go by number).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
            weights: A positive sampling or importance weight for each row. Default: None (ours:
                rows count the same).
            clusters: The cluster of each row, such as its patient. Default: None (ours: rows are
                independent).

        >>> import numpy as np
        >>> Predictions.from_events(np.array([0.9, 0.2]), np.array([True, False]), event="fraud")
        Predictions('predictions': 2 rows, events (fraud), probabilities, numpy float64)
        """
        return cls._build(
            probability,
            happened,
            validate=validate,
            is_logits=is_logits,
            task="events",
            event=event,
            ids=ids,
            name=name,
            weights=weights,
            clusters=clusters,
        )

    @classmethod
    def from_multilabel(
        cls,
        scores: object,
        labels: object,
        *,
        is_logits: bool = True,
        class_names: Sequence[str] | None = None,
        ids: object = None,
        name: str = "predictions",
        validate: bool = True,
        weights: object = None,
        clusters: object = None,
    ) -> Predictions:
        """Make predictions from L scores a row, each for a label of its own.

        Args:
            scores: Logits or probabilities of shape (N,L).
            labels: 0 or 1 for each score, −1 or NaN where missing, shape (N,L); None if not known.
            is_logits: Whether the scores are logits (else probabilities). Default: True (ours:
                networks give logits).
            class_names: L different names of labels. Default: None (ours: labels go by number).
            ids: A whole number or text for each row. Default: None (ours: rows go by number).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
            weights: A positive sampling or importance weight for each row. Default: None (ours:
                rows count the same).
            clusters: The cluster of each row, such as its patient. Default: None (ours: each row
                is a cluster of its labels).
        """
        return cls._build(
            scores,
            labels,
            validate=validate,
            is_logits=is_logits,
            task="multilabel",
            class_names=class_names,
            ids=ids,
            name=name,
            weights=weights,
            clusters=clusters,
        )

    @classmethod
    def from_options(
        cls,
        scores: Sequence[object],
        answers: object,
        *,
        is_logits: bool = True,
        ids: object = None,
        name: str = "predictions",
        validate: bool = True,
        weights: object = None,
        clusters: object = None,
    ) -> Predictions:
        """Make predictions from questions with different numbers of options.

        Args:
            scores: An array for each question, with the score of each of its options; or an array
                (N,K) of logits, padded with −inf at the end of rows.
            answers: The number, from 0, of each question's true option; None if not known.
            is_logits: Whether the scores are logits, such as log-likelihoods (else probabilities).
                Default: True (ours: language models give log-likelihoods).
            ids: A whole number or text for each row. Default: None (ours: rows go by number).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
            weights: A positive sampling or importance weight for each row. Default: None (ours:
                rows count the same).
            clusters: The cluster of each row, such as its document. Default: None (ours: rows are
                independent).

        >>> questions = [[-1.0, -2.0], [-3.0, -0.5, -4.0]]
        >>> Predictions.from_options(questions, [0, 1])
        Predictions('predictions': 2 rows, 2 to 3 options, logits, numpy float64)
        """
        padded, counts = arrays.pad_options(scores, is_logits=is_logits)
        return cls._build(
            padded,
            answers if answers is None else np.asarray(answers),
            validate=validate,
            is_logits=is_logits,
            ids=ids,
            name=name,
            weights=weights,
            clusters=clusters,
            num_options=counts,
        )

    @classmethod
    def _build(cls, scores: Any, labels: Any, *, validate: bool, **fields: Any) -> Predictions:
        if fields.get("task", "classes") == "classes":
            labels = match_class_names(labels, fields.get("class_names"))
        predictions = cls(scores, labels, **fields)
        if validate:
            predictions._check_values()
        return predictions

    def _check_values(self) -> None:
        if self.labels is not None and self.task == "classes":
            check_labels(self.labels, self.num_classes, self.ignore_index)
            if self.num_options is not None:
                arrays.check_answers(as_numpy(self.labels), self.num_options, self.ignore_index)
        if self.labels is not None and self.task == "events":
            arrays.check_outcomes(as_numpy(self.labels))
        absent, sums = self.num_options is not None, self.task != "multilabel"
        if isinstance(self.scores, FileScores):
            self.scores.check(is_logits=self.is_logits, absent=absent, sums=sums)
            return
        if self.num_options is not None:
            arrays.check_absent(self.scores, self.num_options, is_logits=self.is_logits)
        check_scores(self.scores, is_logits=self.is_logits, absent=absent, sums=sums)

    @classmethod
    def from_model(
        cls,
        model: Callable[..., Any],
        loader: Iterable[Any],
        *,
        device: str | torch.device | None = None,
        progress: bool = True,
        outputs: Literal["logits", "probs"] = "logits",
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str = "predictions",
        validate: bool = True,
    ) -> Predictions:
        """Run a model over a loader and gather its outputs and the labels on the CPU.

        The model runs in evaluation mode without gradients; afterwards every submodule's mode
        and the device are restored.

        Args:
            model: A module or function. Its output is a tensor, a tuple whose first item is a
                tensor, or an object or mapping with ``logits`` (Hugging Face) or ``out``
                (torchvision). Outputs of shape (N,1) are a binary score.
            loader: Yields (input, target) pairs, or dicts with the target under ``label``,
                ``labels``, ``target`` or ``targets``.
            device: Where to run the model. Default: None (ours: where the model is).
            progress: Show a progress bar on a terminal. Default: True (ours).
            outputs: ``"logits"`` or ``"probs"``, what the model returns. Default: 'logits' (ours:
                networks give logits).
            class_names: K different names. Default: None (ours: classes go by number).
            ignore_index: The label of rows that do not count. Default: None (ours: all count).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
        """
        from calibrant.predictions.model import collect

        if outputs not in ("logits", "probs"):
            raise InputError(f"outputs must be 'logits' or 'probs', found {outputs!r}")
        scores, labels = collect(model, loader, device=device, progress=progress, outputs=outputs)
        return cls._build(
            scores,
            labels,
            validate=validate,
            is_logits=outputs == "logits",
            class_names=class_names,
            ignore_index=ignore_index,
            name=name,
        )

    @classmethod
    def read(
        cls,
        path: Paths,
        *,
        labels: object = None,
        kind: Literal["logits", "probs"] | None = None,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str | None = None,
        lazy: bool | None = None,
        validate: bool = True,
        score_columns: str | Sequence[str] | None = None,
        label_column: str | Sequence[str] | None = None,
        weight_column: str | None = None,
        cluster_column: str | None = None,
        id_column: str | None = None,
        event: str | None = None,
        pos_label: str | int | bool | None = None,
        drop_unlabelled: bool = False,
        normalise: Literal["none", "length", "bytes"] = "none",
    ) -> Predictions:
        """Read ``.npz .npy .safetensors .pt .parquet .arrow .feather .csv .csv.gz`` or ``.jsonl``.

        Files of arrays have the keys ``logits`` or ``probs`` and ``labels``; of events
        ``probability`` or ``confidence``, and ``happened`` or ``correct``; optionally
        ``class_names``, ``ids``, ``weights``, ``clusters`` and ``ignore_index``. Tables have the
        columns ``logit_k`` or ``prob_k`` (binary: ``logit`` or ``prob``) and ``label``, or those of
        events, and optionally ``id``, ``weight`` and ``cluster``. Pickled objects are never loaded.
        Several files are read as one set, in the order given (globs and folders: of their names).

        In text files, probabilities that miss 1 by more than 0.001, and by no more than rounding
        to d printed digits explains, 4·sqrt(K/12)·10^−d, are divided by their sum, with a warning.

        Args:
            path: The file, or a list of files, a glob, or a folder of Parquet files, whose
                ``key=value`` folders become columns; ``example:NAME`` or
                ``example:NAME/validation`` for one of `examples`; or the sample logs of
                lm-evaluation-harness (``samples_TASK_DATE.jsonl``).
            labels: A file of labels, or an array of them. Default: None (ours: those in the file).
            kind: ``"logits"`` or ``"probs"``; a bare array and columns with names of your own need
                it. Default: None (ours: the names in the file say it).
            class_names: K different names; labels of text are matched with them. Default: None
                (ours: those in the file, or the names of ``score_columns``).
            ignore_index: The label of rows that do not count. Default: None (ours: the file's).
            name: The name shown in reports. Default: None (ours: the file's name).
            lazy: Whether scores stay in the file and are read, and checked, in chunks. ``.npz``
                and ``.jsonl`` are always read whole; ``.safetensors`` and ``.pt`` become
                memory-mapped tensors. Default: None (ours: above 1 GiB).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
            score_columns: The score columns, one for each class: a list, names joined by commas,
                or the prefix of their names. Classes are named after their columns, and labels are
                matched with these names. One score column, with a column of outcomes, is an event.
                Columns that are not named (but ``label`` and ``id``) then do not count. Default:
                None (ours: the usual names).
            label_column: The column of labels, or whether the event happened; a list for many
                labels a row. Default: None (ours: ``label``, ``happened`` or ``correct``).
            weight_column: The column of weights. Default: None (ours: ``weight``, if it is there).
            cluster_column: The column of clusters. Default: None (ours: ``cluster``, if it is
                there).
            id_column: The column of ids. Default: None (ours: ``id``, if it is there).
            event: What the one score column is the probability of. Default: None (ours: the
                name of the label column, if it says something).
            pos_label: The value of the label column that means that the event happened; for
                classes give it to ``evaluate``. Default: None (ours: 1 or true).
            drop_unlabelled: Leave out rows whose label is missing, and warn of how many. Default:
                False (ours: a missing label is an error).
            normalise: In sample logs of lm-evaluation-harness, divide the log-likelihood of each
                option by its ``"length"`` in characters (as ``acc_norm``) or in ``"bytes"``.
                Default: 'none' (the harness's ``acc``).
        """
        predictions, _ = cls.read_with_columns(
            path,
            (),
            labels=labels,
            kind=kind,
            class_names=class_names,
            ignore_index=ignore_index,
            name=name,
            lazy=lazy,
            validate=validate,
            score_columns=score_columns,
            label_column=label_column,
            weight_column=weight_column,
            cluster_column=cluster_column,
            id_column=id_column,
            event=event,
            pos_label=pos_label,
            drop_unlabelled=drop_unlabelled,
            normalise=normalise,
        )
        return predictions

    @classmethod
    def read_with_columns(
        cls,
        path: Paths,
        columns: Sequence[str],
        *,
        labels: object = None,
        kind: Literal["logits", "probs"] | None = None,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str | None = None,
        lazy: bool | None = None,
        validate: bool = True,
        score_columns: str | Sequence[str] | None = None,
        label_column: str | Sequence[str] | None = None,
        weight_column: str | None = None,
        cluster_column: str | None = None,
        id_column: str | None = None,
        event: str | None = None,
        pos_label: str | int | bool | None = None,
        drop_unlabelled: bool = False,
        normalise: Literal["none", "length", "bytes"] = "none",
    ) -> tuple[Predictions, dict[str, npt.NDArray[Any]]]:
        """Read predictions, and further columns of the same rows, such as groups.

        Rows that are left out are left out of both.

        Args:
            path: See `read`, as for every other option.
            columns: The columns to return: of a table, of the folders' names, or of sample logs
                (``task`` and the fields of a document).
            labels: A file of labels, or an array of them. Default: None (see ``read``).
            kind: ``"logits"`` or ``"probs"``. Default: None (see ``read``).
            class_names: K different names. Default: None (see ``read``).
            ignore_index: The label of rows that do not count. Default: None (see ``read``).
            name: The name shown in reports. Default: None (see ``read``).
            lazy: Whether scores stay in the file. Default: None (see ``read``).
            validate: Check the values. Default: True (see ``read``).
            score_columns: The score columns. Default: None (see ``read``).
            label_column: The column of labels. Default: None (see ``read``).
            weight_column: The column of weights. Default: None (see ``read``).
            cluster_column: The column of clusters. Default: None (see ``read``).
            id_column: The column of ids. Default: None (see ``read``).
            event: What the one score column is the probability of. Default: None (see ``read``).
            pos_label: The value that means that the event happened. Default: None (see ``read``).
            drop_unlabelled: Leave out rows whose label is missing. Default: False (see ``read``).
            normalise: What log-likelihoods are divided by. Default: 'none' (see ``read``).
        """
        from calibrant.predictions.read import find_files, read_contents

        options = ColumnNames(
            scores=score_columns,
            label=label_column,
            weight=weight_column,
            cluster=cluster_column,
            id=id_column,
            event=event,
            pos_label=pos_label,
            drop_unlabelled=drop_unlabelled,
            class_names=class_names,
            extra=tuple(columns),
        )
        shown, files = find_files(path)
        with explain_read_errors(shown):
            contents = read_contents(
                shown,
                files,
                labels=labels,
                kind=kind,
                lazy=lazy,
                options=options,
                normalise=normalise,
            )
            missing = [name for name in columns if name not in contents.extra]
            if missing:
                raise InputError(f"there is no column {missing[0]!r} to read beside the scores")
            predictions = cls._from_contents(contents, options, ignore_index, name, validate)
        return predictions, contents.extra

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        kind: Literal["logits", "probs"] | None = None,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str = "predictions",
        validate: bool = True,
        score_columns: str | Sequence[str] | None = None,
        label_column: str | Sequence[str] | None = None,
        weight_column: str | None = None,
        cluster_column: str | None = None,
        id_column: str | None = None,
        event: str | None = None,
        pos_label: str | int | bool | None = None,
        drop_unlabelled: bool = False,
    ) -> Predictions:
        """Make predictions from a data frame of pandas, polars or another library.

        Args:
            frame: The data frame. Columns with the usual names need no options; see ``read``.
            kind: ``"logits"`` or ``"probs"``; columns with names of your own need it. Default: None
                (ours: the names say it).
            class_names: K different names; labels of text are matched with them. Default: None
                (ours: the names of ``score_columns``).
            ignore_index: The label of rows that do not count. Default: None (ours: all count).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
            score_columns: The score columns, one for each class: a list, names joined by commas,
                or the prefix of their names. Classes are named after their columns, and labels are
                matched with these names. One score column, with a column of outcomes, is an event.
                Columns that are not named (but ``label`` and ``id``) then do not count. Default:
                None (ours: the usual names).
            label_column: The column of labels, or whether the event happened; a list for many
                labels a row. Default: None (ours: ``label``, ``happened`` or ``correct``).
            weight_column: The column of weights. Default: None (ours: ``weight``, if it is there).
            cluster_column: The column of clusters. Default: None (ours: ``cluster``, if it is
                there).
            id_column: The column of ids. Default: None (ours: ``id``, if it is there).
            event: What the one score column is the probability of. Default: None (ours: the
                name of the label column, if it says something).
            pos_label: The value of the label column that means that the event happened; for
                classes give it to ``evaluate``. Default: None (ours: 1 or true).
            drop_unlabelled: Leave out rows whose label is missing, and warn of how many. Default:
                False (ours: a missing label is an error).

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"score": [0.9, 0.2], "fraud": [1, 0]})
        >>> Predictions.from_frame(
        ...     frame, score_columns="score", label_column="fraud", kind="probs"
        ... )
        Predictions('predictions': 2 rows, events (fraud), probabilities, numpy float64)
        """
        from calibrant.predictions.tables import open_frame, read_table

        options = ColumnNames(
            scores=score_columns,
            label=label_column,
            weight=weight_column,
            cluster=cluster_column,
            id=id_column,
            event=event,
            pos_label=pos_label,
            drop_unlabelled=drop_unlabelled,
            class_names=class_names,
        )
        contents = read_table(open_frame(frame), options, largest=sys.maxsize)
        contents.kind = agree_kind(contents.kind, kind)
        return cls._from_contents(contents, options, ignore_index, name, validate)

    @classmethod
    def _from_contents(
        cls,
        contents: Contents,
        options: ColumnNames,
        ignore_index: int | None,
        name: str | None,
        validate: bool,
    ) -> Predictions:
        named = options.class_names is not None and contents.task != "events"
        return cls._build(
            contents.scores,
            contents.labels,
            validate=validate,
            is_logits=contents.kind == "logits",
            class_names=options.class_names if named else contents.class_names,
            ids=contents.ids,
            ignore_index=contents.ignore_index if ignore_index is None else ignore_index,
            name=contents.name if name is None else name,
            task=contents.task,
            event=contents.event,
            weights=contents.weights,
            clusters=contents.clusters,
            num_options=contents.num_options,
        )

    def write(self, path: str | os.PathLike[str], *, labels: bool = True) -> Path:
        """Write to the format of the ending, whole or not at all; see ``read``.

        Args:
            path: The file. An ``.npy`` holds the scores alone: the labels go beside it as
                ``NAME.labels.npy``, weights as ``NAME.weights.npy`` and so on, where ``read`` finds
                them.
            labels: Whether to write the labels. Default: True (ours).
        """
        from calibrant.predictions.write import write_contents

        return write_contents(self._make_contents(labels=labels), Path(path))

    def to_frame(self, *, library: str = "pandas", labels: bool = True) -> Any:
        """Return a data frame that ``from_frame`` reads: scores, labels, ids and the like.

        Args:
            library: ``"pandas"`` or ``"polars"``. Default: 'pandas' (comes with calibrant).
            labels: Whether to give the labels. Default: True (ours).

        >>> import numpy as np
        >>> Predictions.from_probs(np.array([[0.9, 0.1]]), [0]).to_frame().to_dict("list")
        {'prob_0': [0.9], 'prob_1': [0.1], 'label': [0]}
        """
        from calibrant.core.frames import frame_of_columns
        from calibrant.predictions.tables import list_columns

        if self.is_dense:
            raise InputError("dense predictions do not fit the columns of a table: use write()")
        columns = list_columns(self._make_contents(labels=labels))
        return frame_of_columns(columns, library=library)

    def _make_contents(self, *, labels: bool) -> Contents:
        return Contents(
            self.scores,
            "logits" if self.is_logits else "probs",
            self.labels if labels else None,
            self.class_names,
            self.ids,
            self.ignore_index,
            task=self.task,
            event=self.event,
            weights=self.weights,
            clusters=self.clusters,
            num_options=self.num_options,
        )

    @property
    def array(self) -> Array:
        """Return the scores as one array; raise an error while they are still in their file."""
        if isinstance(self.scores, FileScores):
            raise InputError("the scores are still in their file: use batches() or in_memory()")
        return self.scores

    @property
    def known_labels(self) -> Array:
        """Return the labels; raise an error if they are not known."""
        if self.labels is None:
            where = {
                "events": "the column or key 'happened' (or 'correct')",
                "multilabel": "the columns 'label_0', 'label_1', ... or the key 'multilabels'",
            }.get(self.task, "the column 'label' or the key 'labels'")
            raise InputError(
                f"{self.name!r}: no labels found, and this needs to know what happened: put them "
                f"in the file as {where}, name their column with label_column=, or give a file of "
                "labels with labels="
            )
        return self.labels

    @property
    def cluster_codes(self) -> npt.NDArray[np.int64] | None:
        """Return the number of each row's cluster, 0 to G−1; None if there are no clusters."""
        if self.clusters is None:
            return None
        return np.unique(self.clusters, return_inverse=True)[1].astype(np.int64).reshape(-1)

    @property
    def num_rows(self) -> int:
        """Return N, the number of rows, or of images if dense; ignored rows included."""
        return int(self.scores.shape[0])

    @property
    def num_classes(self) -> int:
        """Return K, the number of classes; 2 for a binary score."""
        return 2 if self.is_binary else int(self.scores.shape[1])

    @property
    def is_binary(self) -> bool:
        """Return whether scores are (N,): one number a row, the score of class 1."""
        return self.scores.ndim == 1

    @property
    def is_dense(self) -> bool:
        """Return whether scores are (N,K,...) and labels (N,...)."""
        return self.scores.ndim > 2

    @property
    def is_lazy(self) -> bool:
        """Return whether the scores are still in their file."""
        return isinstance(self.scores, FileScores)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        shape = " × ".join(str(size) for size in self.scores.shape[2:])
        kind = "logits" if self.is_logits else "probabilities"
        if isinstance(self.scores, FileScores):
            storage = f"{self.scores.dtype} in {self.scores.path.name}"
        elif isinstance(self.scores, torch.Tensor):
            storage = f"{self.scores.dtype} on {self.scores.device}"
        else:
            storage = f"numpy {self.scores.dtype}"
        parts = [
            f"{self.num_rows} row{'s' if self.num_rows > 1 else ''}{f' of {shape}' * bool(shape)}",
            self._describe_task(),
            kind,
            storage,
        ]
        parts += [f"{len(np.unique(self.clusters))} clusters"] if self.clusters is not None else []
        parts += ["weighted"] if self.weights is not None else []
        parts += ["no labels"] if self.labels is None else []
        return f"Predictions({self.name!r}: {', '.join(parts)})"

    def _describe_task(self) -> str:
        if self.task == "events":
            return f"events ({self.event})"
        if self.task == "multilabel":
            return f"{self.num_classes} labels"
        if self.num_options is not None:
            return f"{self.num_options.min()} to {self.num_options.max()} options"
        return "binary" if self.is_binary else f"{self.num_classes} classes"

    def batches(self, rows: int | None = None) -> Iterator[tuple[Array, Array]]:
        """Yield scores and int64 labels of consecutive rows.

        Arrays in memory give views; a file is read and checked chunk by chunk. Rows whose label
        is ``ignore_index`` are included.

        Args:
            rows: The most rows of a batch. Default: None (ours: about four million values).
        """
        if rows is not None and (isinstance(rows, bool) or rows < 1):
            raise InputError(f"rows must be at least 1, found {rows!r}")
        return self._batches(rows)

    def _batches(self, rows: int | None) -> Iterator[tuple[Array, Array]]:
        start, labels = 0, self.known_labels
        for chunk in iterate_scores(self.scores, rows):
            yield chunk, _int64(labels[start : start + len(chunk)])
            start += len(chunk)

    def split(
        self, fraction: float = 0.5, *, seed: int = 0, stratify: bool = True
    ) -> tuple[Predictions, Predictions]:
        """Split the rows into two disjoint parts, each in the original order.

        The same seed gives the same rows for torch and NumPy.

        Args:
            fraction: The share of rows in the first part, or their number if it is whole.
                Default: 0.5 (ours: halves).
            seed: The seed of the draw. Default: 0 (ours).
            stratify: Split each class as evenly as rounding allows. Dense predictions are split
                along N, never stratified; nor are clusters, which are never split. Default: True
                (ours: parts alike in their classes).
        """
        plain = self.labels is not None and self.labels.ndim == 1
        strata = as_numpy(self.known_labels) if stratify and plain else None
        codes = self.cluster_codes
        if codes is not None:
            first_rows, second_rows = split_clusters(codes, fraction, seed=seed)
        else:
            first_rows, second_rows = split_rows(self.num_rows, fraction, seed=seed, strata=strata)
        return self.take(first_rows), self.take(second_rows)

    def take(self, indices: object) -> Predictions:
        """Take some rows, in the order given.

        Scores in a file stay there if the row numbers ascend; if not, the rows are read now.

        Args:
            indices: Row numbers, or a truth value for each row.
        """
        numbers = self._row_numbers(indices)
        ids = None if self.ids is None else self.ids[numbers]
        scores: Array | FileScores
        if isinstance(self.scores, FileScores):
            scores = self.scores.take(numbers)
        else:
            scores = _take(self.scores, numbers)
        return replace(
            self,
            scores=scores,
            labels=None if self.labels is None else _take(self.labels, numbers),
            ids=ids,
            weights=None if self.weights is None else self.weights[numbers],
            clusters=None if self.clusters is None else self.clusters[numbers],
            num_options=None if self.num_options is None else self.num_options[numbers],
        )

    def _row_numbers(self, indices: Any) -> npt.NDArray[np.int64]:
        rows = as_numpy(indices) if isinstance(indices, torch.Tensor) else np.asarray(indices)
        if rows.dtype == bool and rows.shape == (self.num_rows,):
            rows = np.flatnonzero(rows)
        if rows.size == 0:
            raise InputError("the indices are empty: give at least one row")
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise InputError(
                f"indices must be whole numbers of shape (n,), or a truth value for each of the "
                f"{self.num_rows} rows; found {rows.dtype} of shape {rows.shape}"
            )
        numbers = rows.astype(np.int64)
        outside = numbers[(numbers < 0) | (numbers >= self.num_rows)]
        if len(outside):
            raise InputError(
                f"row numbers must lie in 0 to {self.num_rows - 1}, found {first(outside)}"
            )
        return numbers

    def to_events(self, label: int | None = None) -> Predictions:
        """Return many labels a row as events; a row's labels are one cluster.

        Args:
            label: The label to keep. Default: None (ours: all labels, pooled).
        """
        if self.task != "multilabel":
            raise InputError(f"to_events takes many labels a row, found task {self.task!r}")
        loaded = self.in_memory()
        scores, labels = loaded.array, loaded.known_labels
        rows = np.arange(self.num_rows) if self.clusters is None else self.clusters
        weights = self.weights
        if label is not None:
            names = self.class_names or tuple(str(k) for k in range(self.num_classes))
            return replace(
                loaded,
                scores=scores[:, label],
                labels=labels[:, label],
                task="events",
                event=names[label],
                class_names=None,
            )
        width = self.num_classes
        return replace(
            loaded,
            scores=scores.reshape(-1),
            labels=labels.reshape(-1),
            task="events",
            event="label",
            class_names=None,
            ids=None,
            clusters=np.repeat(rows, width),
            weights=None if weights is None else np.repeat(weights, width),
        )

    def in_memory(self) -> Predictions:
        """Read (and check) scores that are still in a file into memory."""
        if not isinstance(self.scores, FileScores):
            return self
        return replace(self, scores=self.scores.load())


def example(name: str, part: str = "test") -> Predictions:
    """Return the logits and labels of a real network, in half precision.

    ``cifar10-resnet18`` was trained with cross-entropy; other names end in their method. All come
    from one seed of the suite ``quick-cifar``. ``example:NAME`` and ``example:NAME/validation``
    stand for them wherever a file of predictions is read.

    Args:
        name: One of `examples`.
        part: ``"test"`` or ``"validation"``. Default: 'test' (ours).

    >>> len(example("cifar10-resnet18")), len(example("cifar10-resnet18", "validation"))
    (10000, 5000)
    """
    return Predictions.read(f"example:{name}/{part}")


def _check_task_shape(shape: tuple[int, ...], task: str) -> None:
    """Raise if scores of this shape cannot be events or many labels."""
    if task == "events" and len(shape) != 1:
        raise InputError(
            f"events have one probability a row, shape (N,), found {shape}; for many labels a row "
            "use from_multilabel"
        )
    if task == "multilabel" and len(shape) != 2:
        raise InputError(f"many labels a row have scores of shape (N,L), found {shape}")


def _take(array: Array, indices: npt.NDArray[np.int64]) -> Array:
    if isinstance(array, torch.Tensor):
        return array[torch.from_numpy(indices).to(array.device)]
    taken: npt.NDArray[Any] = array[indices]
    return taken


def _int64(labels: Array) -> Array:
    if isinstance(labels, torch.Tensor):
        return labels.to(torch.int64)
    return labels.astype(np.int64, copy=False)
