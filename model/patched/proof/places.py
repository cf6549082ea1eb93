"""Tell which layer a step is in, forward and backward, by hooks that leave the autograd graph as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from reproducers.training.coverage import OUTSIDE

Enter = Callable[[str], None]
ENTRANCE, HEAD, BACKWARD = "entrance", "head", " backward"


class PlaceHooks:
    """Calls ``enter`` with the name of each place that a model's step reaches, until ``remove``.

    PlaceHooks are "5 dsa" and so on for the main stack's layers, "mtp 1", "head" (with the loss), "entrance", each with
    " backward", and "outside layers". A layer's backward begins when the gradient of its output is complete, so a
    hook on this tensor tells it, in the thread that runs it. The layer's recomputing is part of its backward.
    """

    def __init__(self, model: nn.Module, enter: Enter) -> None:
        self._enter = enter
        self._in_backward = False
        self._handles: list[RemovableHandle] = []
        for stage in _stages(model):
            self._whole(stage)
            for number, (layer, name) in enumerate(_layers(stage)):
                self._layer(layer, name, first=number == 0)

    def remove(self) -> None:
        """Remove the hooks; hooks of a living graph tell nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._enter = _nowhere

    def _on_gradient(self, value: object, place: str) -> None:
        """``place`` begins when the gradient of the first tensor in ``value`` is complete."""
        tensor = _first_tensor(value)
        if tensor is not None and tensor.requires_grad:
            tensor.register_hook(lambda _: self._enter(place))

    def _layer(self, layer: nn.Module, name: str, first: bool) -> None:
        def before(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            self._enter(name + BACKWARD if self._in_backward else name)
            if first and not self._in_backward:
                self._on_gradient((*args, kwargs.get("hidden_states")), ENTRANCE + BACKWARD)

        def after(_: nn.Module, args: Any, output: Any) -> None:
            self._on_gradient(output, name + BACKWARD)
            if not self._in_backward:
                self._enter(OUTSIDE)

        self._handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(layer.register_forward_hook(after))

    def _whole(self, stage: Any) -> None:
        """Hook the stage around its layers: entrance, head, start and end of backward."""
        last = HEAD if stage.post_process else OUTSIDE

        def after(_: nn.Module, args: Any, output: Any) -> None:
            tensor = _first_tensor(output)
            if tensor is not None and tensor.requires_grad:
                tensor.register_hook(lambda _: self._backward(last + BACKWARD))
            self._enter(OUTSIDE)

        start = ENTRANCE if stage.pre_process else OUTSIDE
        self._handles.append(stage.register_forward_pre_hook(lambda *_: self._enter(start)))
        self._handles.append(stage.register_forward_hook(after))
        if stage.post_process:
            self._handles.append(stage.output_layer.register_forward_pre_hook(lambda *_: self._enter(HEAD)))

    def _backward(self, place: str) -> None:
        self._enter(place)
        self._in_backward = True
        engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
        engine.queue_callback(self._backward_ended)  # as DDP and FSDP do

    def _backward_ended(self) -> None:
        self._in_backward = False
        self._enter(OUTSIDE)


def _nowhere(place: str) -> None:
    """Do nothing: the hooks were removed."""


def _stages(model: nn.Module) -> list[nn.Module]:
    """The pipeline stages inside DDP's and Float16Module's wrappers: each owns a decoder with layers."""
    return [module for module in model.modules() if hasattr(getattr(module, "decoder", None), "layers")]


def _layers(stage: Any) -> Iterator[tuple[nn.Module, str]]:
    """The stage's own layers with their names; MTP's depths count from 1."""
    kinds = {layer.number: layer.kind for layer in stage.config.model_size.layers}
    for layer in stage.decoder.layers:
        yield layer, f"{layer.layer_number} {kinds[layer.layer_number]}"
    for number, layer in enumerate(getattr(getattr(stage, "mtp", None), "layers", []), 1):
        yield layer, f"mtp {number}"


def _first_tensor(value: object) -> Tensor | None:
    parts = value if isinstance(value, tuple | list) else (value,)
    return next((part for part in parts if isinstance(part, Tensor)), None)
