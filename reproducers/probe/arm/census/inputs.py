"""What a call is made with, and the same values as other kinds of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reproducers.probe.arm.census import values

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass
class Given:
    """What a call is made with."""

    owner: Any
    args: list[Any]
    named: dict[str, Any]

    def copy(self) -> Given:
        made = values.copied({"owner": self.owner, "args": self.args, "named": self.named})
        return Given(made["owner"], made["args"], made["named"])

    def mapped(self, change: Callable[[Any], Any]) -> Given:
        """With every tensor and whole number in the arguments, not in the owner, changed."""
        return Given(self.owner, [_mapped(arg, change) for arg in self.args], _mapped(self.named, change))

    @property
    def tensors(self) -> dict[str, Tensor]:
        return values.tensors({"args": self.args, "named": self.named})

    @property
    def whole(self) -> dict[str, Any]:
        return {"owner": self.owner, "args": self.args, "named": self.named}

    @property
    def everything(self) -> dict[str, Tensor]:
        return values.tensors(self.whole)


class Subclass(Tensor):  # type: ignore[misc]
    """A kind of tensor of one's own, as that of a quantized or a distributed parameter is."""


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Tensor):
        made = change(value)
        if made is not value and type(made) is type(value):
            _as_held(value, made, change)
        return made
    if isinstance(value, int) and not isinstance(value, bool):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(inner, change) for inner in value)
    if type(value) is dict:
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, (*values.PLAIN, *values.OPAQUE, nn.Module)) or not hasattr(value, "__dict__"):
        return value
    for name, inner in list(vars(value).items()):
        if isinstance(inner, Tensor | int) and not isinstance(inner, bool):
            with contextlib.suppress(Exception):
                setattr(value, name, change(inner))
    return value


def _as_held(tensor: Tensor, made: Tensor, change: Callable[[Any], Any]) -> None:
    """What a tensor holds beside its values, its gradient above all, changed as the tensor is."""
    for name, held in {**vars(tensor), **values.gradient(tensor)}.items():
        with contextlib.suppress(Exception):
            setattr(made, name.lstrip("."), change(held) if isinstance(held, Tensor) else held)


def differentiable(value: Any) -> list[Tensor]:
    return [one for one in values.tensors(value).values() if one.requires_grad and one.grad_fn is not None]


def leaves(given: Given) -> dict[str, Tensor]:
    return {path: one for path, one in given.everything.items() if one.requires_grad and one.is_leaf}


def changed_in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


def rewrite(tensors: Iterable[Tensor]) -> None:
    """Other values where they hold floating-point numbers, without a new version: an optimizer's buffers leave none."""
    for tensor in {id(one): one for one in tensors if one.is_floating_point()}.values():
        with contextlib.suppress(RuntimeError):
            tensor.data.mul_(0.75)


def weights(tensor: Tensor) -> Tensor:
    """A gradient that is not the same everywhere."""
    made: Tensor = 1 + torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape) % 7 / 8
    return made


def bounds(tensor: Tensor) -> bool:
    """Whether it holds the bounds of packed sequences: whole numbers from 0 on that do not fall."""
    if tensor.dtype not in INTS or tensor.dim() != 1 or tensor.numel() < 2 or int(tensor[0]) != 0:
        return False
    return bool((tensor.diff() >= 0).all())


def toggled(given: Given) -> Given:
    was = given.owner.training
    given.owner.eval()
    given.owner.train(was)
    return given


def _strided(tensor: Tensor) -> Tensor:
    """The same values with gaps between them."""
    if not tensor.dim() or not tensor.numel():
        return tensor
    wide = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    wide[..., ::2] = tensor.detach()
    return wide[..., ::2].requires_grad_(tensor.requires_grad)


def _in_wider_rows(tensor: Tensor) -> Tensor:
    """The same values in dense rows, with a gap of one element between two: most begin where TMA cannot read."""
    if tensor.dim() < 2 or not tensor.numel():
        return tensor
    wide = tensor.new_zeros(*tensor.shape[:-1], tensor.shape[-1] + 1)
    wide[..., :-1] = tensor.detach()
    return wide[..., :-1].requires_grad_(tensor.requires_grad)


def _part(tensor: Tensor) -> Tensor:
    """The same values somewhere inside a larger tensor's memory."""
    if not tensor.dim() or not tensor.numel():
        return tensor
    wide = torch.cat([tensor.detach().new_ones(1, *tensor.shape[1:]), tensor.detach()])
    return wide[1:].requires_grad_(tensor.requires_grad)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda t: t,
    "strided": _strided,
    "in wider rows": _in_wider_rows,
    "of a subclass": lambda t: t.as_subclass(Subclass) if type(t) is Tensor else t,
    "as parameters": lambda t: nn.Parameter(t, t.requires_grad) if type(t) is Tensor else t,
    "inside another's memory": _part,
}
WANTS = {"wanting gradients as they do": None, "all wanting gradients": True, "none wanting gradients": False}
MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "in no mode": contextlib.nullcontext,
    "under no_grad": torch.no_grad,
    "under inference_mode": torch.inference_mode,
}


CASTS: dict[str, Callable[[nn.Module], object]] = {
    "half()": lambda module: module.half(),
    "double()": lambda module: module.double(),
    "to(meta, bfloat16)": lambda module: module.to("meta", torch.bfloat16),
}


def cast(tensor: Tensor, dtype: torch.dtype, family: tuple[torch.dtype, ...]) -> Tensor:
    return like(tensor, tensor.detach().to(dtype)) if tensor.dtype in family else tensor


def like(tensor: Tensor, made: Tensor) -> Tensor:
    """``made``, a leaf that wants a gradient and is a parameter as ``tensor`` is."""
    made = made.detach()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad and made.is_floating_point())


def bools(word: bool, tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, word) if tensor.dtype is torch.bool else tensor


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
