"""Any classifier taken apart: what makes its features, and the head that reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from calibrant.functional.errors import InputError

USUAL = ("classifier", "fc", "head", "heads")  # ours and torchvision's names for the head


class Split(NamedTuple):
    """``head(extractor(x))`` is ``model(x)``; both share its weights."""

    extractor: nn.Module
    head: nn.Module
    name: str  # of the head, in the model


class Extractor(nn.Module):
    """What reaches a model's head, caught on its way."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *inputs: Any) -> Tensor:
        """The head's input."""
        caught: list[Tensor] = []

        def catch(_: nn.Module, given: tuple[Any, ...]) -> None:
            caught.append(given[0])

        hook = self.model.get_submodule(self.name).register_forward_pre_hook(catch)
        try:
            self.model(*inputs)
        finally:
            hook.remove()
        if len(caught) != 1:
            raise InputError(
                f"the head {self.name!r} was called {len(caught)} times in one forward; name "
                "another with head="
            )
        return caught[0]


def split(model: nn.Module, *, head: str | None = None) -> Split:
    """Feature extractor and head of any model.

    The head is what timm's ``get_classifier()`` gives, or the last linear layer of
    ``classifier``, ``fc``, ``head`` or ``heads``, or the linear layer that ends an
    ``nn.Sequential``, or the module named by ``head``.
    """
    name = _find(model) if head is None else head
    try:
        found = model.get_submodule(name)
    except AttributeError:
        named = ", ".join(child for child, _ in model.named_children())
        raise InputError(f"the model has no module {name!r}; it has: {named}") from None
    if not name:
        raise InputError("the head must be a part of the model, found the whole of it")
    return Split(Extractor(model, name), found, name)


def _find(model: nn.Module) -> str:
    if callable(getattr(model, "get_classifier", None)):
        wanted = model.get_classifier()  # type: ignore[operator]
        if isinstance(wanted, (tuple, list)):
            raise InputError(
                f"{type(model).__name__} has {len(wanted)} classifiers, whose answers it puts "
                "together: name the one that is meant with head="
            )
        for name, module in model.named_modules():
            if module is wanted and name:
                return name
    for name in USUAL:
        part = getattr(model, name, None)
        if isinstance(part, nn.Module):
            last = _last_linear(part)
            if last is not None:
                return f"{name}.{last}" if last else name
    if isinstance(model, nn.Sequential) and len(model) > 1 and isinstance(model[-1], nn.Linear):
        return next(reversed(model._modules))
    named = ", ".join(child for child, _ in model.named_children())
    raise InputError(
        f"found no classifier head in {type(model).__name__}; name it with head=, one of: {named}"
    )


def _last_linear(part: nn.Module) -> str | None:
    names = [
        name for name, module in part.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))
    ]
    return names[-1] if names else None
