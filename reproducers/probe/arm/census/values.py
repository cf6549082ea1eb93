"""Arguments and results as values: their tensors by path, copies, what they look like, whether two are alike."""

from __future__ import annotations

import copy
import enum
import hashlib
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum, PurePath)
OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType)
MODULE = ("_parameters", "_buffers", "_modules")
UNSLOTTED = ("__dict__", "__weakref__")  # slots that hold nothing of the object's own
DEPTH, NODES = 6, 4000  # of an argument; what lies deeper is not looked at
HELD = 20_000  # objects in which one that cannot be copied is looked for
HASHED = 1 << 22  # bytes of a tensor whose values are compared
NEAR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}  # of the largest value


def parts(value: Any, path: str = "", depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """(path, tensor or plain value) within a value; each object once, NODES at most."""
    yield from _parts(value, path, depth, set(), [NODES])


def _parts(value: Any, path: str, depth: int, seen: set[int], left: list[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PLAIN):
        yield path, value
        return
    if id(value) in seen or left[0] <= 0:
        return
    seen.add(id(value))
    left[0] -= 1
    if isinstance(value, Tensor):
        yield path, value
        if depth and (held := {**vars(value), **gradient(value)}):
            yield from _members(held, path, depth, seen, left)
    elif depth and not isinstance(value, OPAQUE):
        yield from _members(members(value), path, depth, seen, left)


def _members(held: Mapping[str, Any], path: str, depth: int, seen: set[int], left: list[int]) -> Iterator[Any]:
    for name, inner in held.items():
        yield from _parts(inner, f"{path}{name}", depth - 1, seen, left)


def gradient(tensor: Tensor) -> dict[str, Tensor]:
    """{".grad": it} of a leaf that has one."""
    return {".grad": tensor.grad} if tensor.is_leaf and tensor.grad is not None else {}


def members(value: Any) -> dict[str, Any]:
    """{".name" or "[key]": value} of what an object holds; a module's parameters and buffers by their own names."""
    if isinstance(value, nn.Module):
        plain = {name: held for name, held in vars(value).items() if name not in MODULE}
        return {
            f".{name}": held
            for held_by in (plain, *(vars(value).get(name, {}) for name in MODULE))
            for name, held in held_by.items()
        }
    if isinstance(value, Mapping):
        return {f"[{key!r}]": held for key, held in list(value.items())}
    if isinstance(value, tuple | list | set | frozenset | deque):
        names = getattr(value, "_fields", None)
        rows = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        return {f".{names[i]}" if names else f"[{i}]": held for i, held in enumerate(rows)}
    slots = (name for kind in type(value).__mro__ for name in _several(vars(kind).get("__slots__", ())))
    held = {name: getattr(value, name) for name in slots if name not in UNSLOTTED and hasattr(value, name)}
    return {f".{name}": one for name, one in {**held, **getattr(value, "__dict__", {})}.items()}


def _several(names: str | Iterable[str]) -> Iterable[str]:
    return (names,) if isinstance(names, str) else names


def tensors(value: Any) -> dict[str, Tensor]:
    """{path: tensor} within a value."""
    return {path: part for path, part in parts(value) if isinstance(part, Tensor)}


def size(value: Any) -> int:
    """Bytes of the tensors within a value."""
    return sum(t.numel() * t.element_size() for t in tensors(value).values())


def looks(tensor: Tensor) -> tuple[Any, ...]:
    """Identity, shape, strides, dtype, device and kind of a tensor, and its values where they are few."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    kind = (tuple(tensor.shape), strides, tensor.dtype, tensor.device.type, type(tensor).__name__)
    return id(tensor), *kind, tensor.requires_grad, digest(tensor)


def emptied(tensor: Tensor) -> bool:
    """Whether its memory was given back, as recomputation does: its values cannot be read."""
    try:
        return bool(tensor.numel() and tensor.device.type != "meta" and not tensor.untyped_storage().nbytes())
    except (RuntimeError, NotImplementedError):  # a kind without memory of its own
        return False


def digest(tensor: Tensor) -> str:
    """Of a tensor's values, "" of one that has none or many."""
    if tensor.device.type == "meta" or tensor.numel() * tensor.element_size() > HASHED or emptied(tensor):
        return ""
    try:
        copy = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # numpy's view forbids a resize
        flat = copy.reshape(-1).view(torch.uint8)
    except (RuntimeError, NotImplementedError):  # a kind without memory of its own
        return ""
    return hashlib.sha256(flat.numpy().data).hexdigest()


def digests(value: Any) -> dict[str, str]:
    """{path: digest} of the tensors within a value."""
    return {path: digest(tensor) for path, tensor in tensors(value).items()}


def photograph(value: Any) -> dict[str, Any]:
    """{path: what is there} of a value's tensors and plain values, for ``changed``."""
    return {path: looks(part) if isinstance(part, Tensor) else part for path, part in parts(value)}


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Paths that came, went or are not what they were; places in a sequence or mapping are one path."""
    return sorted({place(path) for path in before.keys() | after.keys() if not _same(before, after, path)})


def _same(before: dict[str, Any], after: dict[str, Any], path: str) -> bool:
    if path not in before or path not in after:
        return False
    one, other = before[path], after[path]
    return type(one) is type(other) and (one == other or one != one)


def place(path: str) -> str:
    """A path without keys and numbers."""
    out, inside = "", 0
    for letter in path:
        inside += letter == "["
        out += letter if not inside else ""
        inside -= letter == "]"
    return out


def form(tensor: Tensor, shapes: bool = True) -> str:
    """A tensor's dtype, dimensions and whether it wants a gradient, in words, of whatever class it is."""
    size = str(list(tensor.shape)) if shapes else f"{tensor.dim()}d"
    return f"{str(tensor.dtype).removeprefix('torch.')} {size}{' grad' if tensor.requires_grad else ''}"


def is_default(value: Any, default: Any) -> bool:
    """Whether an argument is what it is by default."""
    return value is default or (isinstance(value, PLAIN) and type(value) is type(default) and bool(value == default))


def kind(value: Any, shapes: bool = True) -> str:
    """A value's type in words, as a result has it: of tensors dtype, dimensions, whether they want gradients."""
    if isinstance(value, Tensor):
        return ("" if type(value) is Tensor else f"{type(value).__name__} ") + form(value, shapes)
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(kind(inner, shapes) for inner in value[:20])})"
    if isinstance(value, Mapping):
        rows = [f"{key}: {kind(inner, shapes)}" for key, inner in sorted(value.items(), key=repr)[:40]]
        return f"{type(value).__name__}({', '.join(map(str, rows))})"
    return "None" if value is None else type(value).__name__


def copied(value: Any) -> Any:
    """A copy that shares no tensor with ``value``; of what cannot be copied, such as a process group, the thing itself.

    Raises what copying raises where no such thing is to blame.
    """
    made = {id(t): clone(t) for t in tensors(value).values()}
    try:
        return copy.deepcopy(value, dict(made))
    except Exception:  # which leaves things that are half copied in what it was given
        return copy.deepcopy(value, made | {id(one): one for one in _held(value, set(), [HELD]) if not _copies(one)})


def _held(value: Any, seen: set[int], left: list[int]) -> Iterator[Any]:
    """Everything within a value that is neither plain nor a tensor; HELD at most."""
    if isinstance(value, (*PLAIN, *OPAQUE, Tensor)) or id(value) in seen or left[0] <= 0:
        return
    seen.add(id(value))
    left[0] -= 1
    yield value
    for inner in members(value).values():
        yield from _held(inner, seen, left)


def _copies(value: Any) -> bool:
    """Whether ``copy.deepcopy`` takes an object apart, as it does by pickle's protocol."""
    if isinstance(value, dict | list | tuple | set | frozenset | nn.Module) or hasattr(value, "__deepcopy__"):
        return True
    try:
        value.__reduce_ex__(4)
    except Exception:
        return False
    return True


def clone(tensor: Tensor) -> Tensor:
    """Of the same kind, strides and wish for a gradient; a leaf."""
    if emptied(tensor):
        raise ValueError("a tensor whose memory was given back")
    made = tensor.detach().clone(memory_format=torch.preserve_format)
    if tensor.layout is torch.strided and made.stride() != tensor.stride() and tensor.numel():
        made = strided_as(tensor)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, tensor.requires_grad)
    elif tensor.requires_grad:
        made.requires_grad_()
    made.__dict__.update({name: copied(held) for name, held in vars(tensor).items()})
    for grad in gradient(tensor).values():
        made.grad = clone(grad)
    return made


def strided_as(tensor: Tensor) -> Tensor:
    """The values of a tensor in memory that is laid out as its own."""
    need = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    made = tensor.new_zeros(need).as_strided(tensor.shape, tensor.stride())
    if all(step or n == 1 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        made.copy_(tensor.detach())
        return made
    return tensor.detach().clone()


def alike(one: Any, other: Any, near: float | None = None) -> bool:
    """Whether two results are of one structure with values that are near: by ``near`` of the largest, else by dtype."""
    mine, theirs = dict(parts(one)), dict(parts(other))
    if mine.keys() != theirs.keys():
        return False
    return all(_alike(mine[path], theirs[path], near) for path in mine)


def _alike(one: Any, other: Any, near: float | None) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        if isinstance(one, float) and isinstance(other, float):
            return one == other or one != one or abs(one - other) <= (near or 1e-6) * max(abs(one), abs(other))
        return isinstance(one, Tensor) == isinstance(other, Tensor) and (type(one) is not type(other) or one == other)
    if one.shape != other.shape:
        return False
    if one.device.type == "meta" or other.device.type == "meta" or not one.numel():
        return True
    a, b = (t.detach().to("cpu") for t in (one, other))
    if not (a.is_floating_point() or a.is_complex()) and near is None:
        return bool((a == b).all())
    limit = near if near is not None else max(NEAR.get(a.dtype, 1e-4), NEAR.get(b.dtype, 1e-4))
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    off = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    scale = torch.where(b.isfinite(), b.abs(), 0.0).max()
    return bool((off <= limit * scale + 1e-30).all())


def finite(value: Any) -> bool:
    """Whether no tensor within holds a NaN or an infinity."""
    return all(bool(t.isfinite().all()) for t in tensors(value).values() if t.is_floating_point())
