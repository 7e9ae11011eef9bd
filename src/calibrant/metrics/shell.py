"""A metric behind torchmetrics' interface: what every class of `modules` is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from calibrant.functional.blocks import Array, blocks
from calibrant.functional.errors import InputError
from calibrant.metrics.base import Measure, State
from calibrant.metrics.classwise import ProbState
from calibrant.metrics.registry import METRICS, measure

# What rows are kept in, each wide enough for those before it.
_DTYPES = (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Shell(Metric):
    """A metric of the registry behind torchmetrics' interface.

    ``num_classes`` is needed where the sums have a row for each class; where it is given,
    predictions of another number of classes are refused. A batch whose rows are all ignored
    adds nothing to `update`; computing from no rows at all, as `forward` would of that
    batch, raises `InputError`.
    """

    is_differentiable = False
    full_state_update = False
    metric: ClassVar[str]

    def __init_subclass__(cls, *, metric: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        make = METRICS[metric].make
        cls.metric = metric
        cls.higher_is_better = {"higher": True, "lower": False}.get(make().better)
        # What help() and editors show: the metric's own options, then everyone's.
        *common, rest = list(inspect.signature(Shell.__init__).parameters.values())[1:]
        own = inspect.signature(make).parameters.values()
        cls.__signature__ = inspect.Signature([*own, *common, rest.replace(name="kwargs")])

    def __init__(
        self,
        *,
        from_logits: bool = True,
        ignore_index: int | None = None,
        num_classes: int | None = None,
        validate_args: bool = True,
        **options: Any,
    ) -> None:
        own = inspect.signature(METRICS[self.metric].make).parameters
        chosen = {name: options.pop(name) for name in own if name in options}
        try:
            super().__init__(**options)
        except ValueError as error:
            known = ", ".join(own) or "none"
            raise InputError(f"{type(self).__name__}: {error}; its own options: {known}") from None
        self.options = chosen
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        self.num_classes = num_classes
        self.validate_args = validate_args
        for key, state, name in self._entries(self._build(self._measure)):
            if name in state.kept:
                self.add_state(key, [], dist_reduce_fx="cat")
            else:
                self.add_state(key, self._zeros(state, name), dist_reduce_fx="sum")

    @property
    def _measure(self) -> Measure:
        # Made when needed: a measure holds closures, which cannot be pickled.
        return measure(self.metric, **self.options)

    def _build(self, wanted: Measure) -> tuple[State, ...]:
        """Fresh states."""
        states = wanted.build()
        for state in states:
            if isinstance(state, ProbState):
                # A training loop may write the next batch where this one was.
                state.copy, state.logits = True, self.from_logits
        return states

    def _entries(self, states: tuple[State, ...]) -> Iterator[tuple[str, State, str]]:
        """The metric's attribute for each tensor of its states.

        It names all that the contents depend on: a `MetricCollection` lets metrics share one
        state once their attributes have the same names and, for one batch, the same values.
        """
        common = "" if self.from_logits else "_probs"
        if self.ignore_index is not None:
            common += f"_ignore_{self.ignore_index}"
        for state in states:
            options = [o for o in state.options()[1:] if not isinstance(o, bool)]
            words = [getattr(o, "__qualname__", str(o)) for o in options]
            kind = type(state).__name__.removesuffix("State").lower()
            for name in (*state.sums, *state.kept):
                text = "_".join([kind, *words, name]) + common
                yield re.sub(r"\W", "_", text.replace("-", "minus")), state, name

    def _zeros(self, state: State, name: str) -> Tensor:
        """An empty sum. Its shape is learnt from states fed one row of so many classes."""

        def shaped(classes: int) -> Tensor:
            fed = type(state)(*state.options()[1:])
            for block in blocks(torch.zeros(1, classes), torch.zeros(1, dtype=torch.int64)):
                fed.update(block)
            return torch.zeros_like(getattr(fed, name))

        if self.num_classes is not None:
            return shaped(self.num_classes)
        if shaped(2).shape != shaped(3).shape:
            raise InputError(
                f"{type(self).__name__} keeps sums for each class: give num_classes, "
                f"for example {type(self).__name__}(num_classes=10)"
            )
        return shaped(2)

    def update(self, preds: Array, target: Array | None = None) -> None:
        """Take in a batch: (N,K), (N,) or (N,K,...) scores and their labels."""
        states = self._build(self._measure)
        for block in blocks(
            preds,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            num_labels=states[0].num_labels,
            validate=self.validate_args,
        ):
            if self.num_classes not in (None, block.num_classes):
                raise InputError(
                    f"{type(self).__name__} was made for {self.num_classes} classes, found "
                    f"scores of {block.num_classes}"
                )
            for state in states:
                state.update(block)
        # Only now, so that a batch refused halfway leaves no trace.
        for key, state, name in self._entries(states):
            seen, total = getattr(state, name), getattr(self, key)
            if name in state.kept:
                total.extend(seen)
            elif seen is not None:
                setattr(self, key, total + seen.to(total.device))

    def compute(self) -> Tensor:
        """The value over everything seen: a 0-dim float64 tensor."""
        states = self._build(self._measure)
        for key, state, name in self._entries(states):
            value = getattr(self, key)
            if name in state.sums:
                setattr(state, name, value if bool(value.any()) else None)
            else:  # after a sync the rows of all processes are one tensor
                parts = [value] if isinstance(value, Tensor) else value
                setattr(state, name, [part for part in parts if len(part)])
        return self._measure.compute(*states)

    def extra_repr(self) -> str:
        """The options that were given."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        """Follow a change of device, never one of precision: sums stay float64.

        torchmetrics stops ``.half()`` but not ``model.to(torch.bfloat16)``.
        """

        def moved(tensor: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=tensor.device)).device
            no_float64 = device.type == "mps" and tensor.dtype == torch.float64
            return tensor if no_float64 else tensor.to(device)

        return super()._apply(moved, *args, **kwargs)

    def _sync_dist(
        self,
        dist_sync_fn: Callable[..., list[Tensor]] = gather_all_tensors,
        process_group: Any | None = None,
    ) -> None:
        """Gather from all processes, some of which may have seen no rows.

        Tensors can be gathered only where all are of one type and one number of dimensions,
        so the processes first tell each other what they keep.
        """
        lists = {k: v for k, v in self.metric_state.items() if isinstance(v, list)}
        if lists:
            mine = torch.full((len(lists), 2), -1, device=self.device)
            for row, parts in zip(mine, lists.values(), strict=True):
                if parts:
                    row[0] = max(_DTYPES.index(part.dtype) for part in parts)
                    row[1] = parts[0].shape[1] if parts[0].ndim > 1 else 0
            everyone = dist_sync_fn(mine, group=process_group or self.process_group)
            agreed = torch.stack(everyone).amax(0).tolist()
            for (key, parts), (kind, width) in zip(lists.items(), agreed, strict=True):
                if kind >= 0:
                    shape = (0, width) if width else (0,)
                    none = torch.empty(shape, dtype=_DTYPES[kind], device=self.device)
                    setattr(self, key, [torch.cat([none, *(p.to(none) for p in parts)])])
        super()._sync_dist(dist_sync_fn, process_group)
