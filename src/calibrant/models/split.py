"""Split any classifier into a feature extractor and the head that reads the features."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from calibrant.core.errors import InputError

USUAL_NAMES = ("classifier", "fc", "head", "heads")  # ours and torchvision's names for the head


class Split(NamedTuple):
    """``head(extractor(x))`` equals ``model(x)``; both share the model's weights."""

    extractor: nn.Module
    head: nn.Module
    name: str  # of the head in the model


class Extractor(nn.Module):
    """Return the inputs of a model's head, caught by a hook.

    Args:
        model: The model.
        name: The name of its head.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *inputs: Any) -> Tensor:
        """Run the model and return the input of its head."""
        caught: list[Tensor] = []

        def catch(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            caught.append(inputs[0])

        hook = self.model.get_submodule(self.name).register_forward_pre_hook(catch)
        try:
            self.model(*inputs)
        finally:
            hook.remove()
        if len(caught) != 1:
            raise InputError(
                f"the head {self.name!r} was called {len(caught)} times in one forward pass: name "
                "another with head="
            )
        return caught[0]


def split(model: nn.Module, *, head: str | None = None) -> Split:
    """Split a model into its feature extractor and its head.

    Args:
        model: Any classifier.
        head: The name of its head. None finds it: what timm's ``get_classifier()`` returns, or
            the last linear layer of ``classifier``, ``fc``, ``head`` or ``heads``, or the
            linear layer that ends an ``nn.Sequential``.
    """
    name = _find_head(model) if head is None else head
    try:
        module = model.get_submodule(name)
    except AttributeError:
        children = ", ".join(child for child, _ in model.named_children())
        raise InputError(f"the model has no module {name!r}; it has: {children}") from None
    if not name:
        raise InputError("the head must be a part of the model, found the whole model")
    return Split(Extractor(model, name), module, name)


def _find_head(model: nn.Module) -> str:
    if callable(getattr(model, "get_classifier", None)):
        classifier = model.get_classifier()  # type: ignore[operator]
        if isinstance(classifier, (tuple, list)):
            raise InputError(
                f"{type(model).__name__} has {len(classifier)} classifiers and combines their "
                "outputs: name one with head="
            )
        for name, module in model.named_modules():
            if module is classifier and name:
                return name
    for name in USUAL_NAMES:
        part = getattr(model, name, None)
        if isinstance(part, nn.Module):
            last = _last_linear(part)
            if last is not None:
                return f"{name}.{last}" if last else name
    if isinstance(model, nn.Sequential) and len(model) > 1 and isinstance(model[-1], nn.Linear):
        return next(reversed(model._modules))
    children = ", ".join(child for child, _ in model.named_children())
    raise InputError(
        f"found no classifier head in {type(model).__name__}: name it with head=, one of: "
        f"{children}"
    )


def _last_linear(part: nn.Module) -> str | None:
    names = [
        name for name, module in part.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))
    ]
    return names[-1] if names else None
