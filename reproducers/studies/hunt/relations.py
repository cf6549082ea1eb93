"""What must hold of any function, whatever it computes: each relation gives pairs (what it is, got, want).

A pair's name begins with the quantity whose rounding limits the difference; ``EXACT`` relations allow none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from reproducers.studies.hunt.kit import Bench, Pair, Tensors, named, paired


def reference(b: Bench) -> Iterator[Pair]:
    """Outputs and gradients are those of eager torch in fp64."""
    if b.reference is not None:
        yield from paired(b.passes(), b.eager(torch.float64))


def frozen(b: Bench) -> Iterator[Pair]:
    """A gradient does not depend on which other operands want one."""
    every = b.passes()
    for alone in b.needs if len(b.needs) > 1 else []:
        yield from paired(b.passes([alone]), every)
        rest = [name for name in b.needs if name != alone]
        if len(rest) > 1:
            yield from paired(b.passes(rest), every)


def second_backward(b: Bench) -> Iterator[Pair]:
    """A retained graph gives the same gradients a second time."""
    leaves = b.leaves()
    outs = b.forward(leaves)
    first = b.backward(outs, leaves, retain=True)
    yield from paired(named([], b.backward(outs, leaves)), named([], first))


def unchanged(b: Bench) -> Iterator[Pair]:
    """Operands, outputs and the gradients from above have their values when all is over, for who reads them later."""
    before, leaves = b.leaves(), b.leaves()
    outs = b.forward(leaves)
    for name, x in leaves.items():
        if x is not None:
            yield f"operand {name} after the forward", x.detach().clone(), before[name]  # type: ignore[misc]
    kept, above = [y.detach().clone() for y in outs], b.above(outs)
    b.backward(outs, leaves, above)
    for name, x in leaves.items():
        if x is not None:
            yield f"operand {name} after the backward", x.detach().clone(), before[name]  # type: ignore[misc]
    for number, (y, was) in enumerate(zip(outs, kept, strict=True)):
        yield f"output {number} after the backward", y.detach().clone(), was
    for number, (go, was) in enumerate(zip(above, b.above(outs), strict=True)):
        yield f"gradient of output {number} after the backward", go.clone(), was


def other_consumer(b: Bench) -> Iterator[Pair]:
    """Another consumer of an operand, which saved it before, gets its gradient right."""
    for name in b.needs:
        leaves = b.leaves(needs=[name])
        leaf = leaves[name]
        assert leaf is not None
        hidden = fresh_node(leaf)
        square = hidden.square().sum()
        outs = b.forward({**leaves, name: hidden})
        alone = b.passes([name])[f"gradient of {name}"]
        got = b.backward([*outs, square], leaves, [*b.above(outs), torch.ones_like(square)])[name]
        yield f"gradient of {name}", got, alone + 2 * leaf.detach()


def fresh_node(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf's values as an operation's result, with the leaf's strides."""
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).copy_(leaf) if dense(leaf) else leaf * 1


def dense(x: torch.Tensor) -> bool:
    """Whether no two elements share memory."""
    return all(step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1)


def residual(b: Bench) -> Iterator[Pair]:
    """In ``r + f(x)`` the gradient from above reaches r as it is, and x as without r."""
    leaves = b.leaves()
    outs = b.forward(leaves)
    beside = [torch.zeros_like(y).requires_grad_() for y in outs]
    sums = [y + r for y, r in zip(outs, beside, strict=True)]
    every = {**leaves, **{f"residual {number}": r for number, r in enumerate(beside)}}
    got = b.backward(sums, every)
    yield from paired(named([], got), b.passes())
    for number, go in enumerate(b.above(outs)):
        yield f"output {number}: gradient of what is added to it", got[f"residual {number}"], go


def linear(b: Bench) -> Iterator[Pair]:
    """Gradients are linear in the gradient from above: that of a loss times 3, and the sum over two loss masks."""

    def gradients(above: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        leaves = b.leaves()
        outs = b.forward(leaves)
        return named([], b.backward(outs, leaves, above(outs)))

    def masked(outs: list[torch.Tensor], side: int) -> list[torch.Tensor]:
        odd = [(torch.arange(y.numel()) % 2).view(y.shape) for y in outs]
        return [torch.where(o == side, go, 0.0) for o, go in zip(odd, b.above(outs), strict=True)]

    three = gradients(lambda outs: [3 * go for go in b.above(outs)])
    yield from paired({name: g / 3 for name, g in three.items()}, b.passes())
    halves = [gradients(lambda outs, side=side: masked(outs, side)) for side in (0, 1)]  # type: ignore[misc]
    yield from paired({name: g + halves[1][name] for name, g in halves[0].items()}, b.passes())


def without_grad(b: Bench) -> Iterator[Pair]:
    """Outputs are the same where nothing wants a gradient."""
    want = b.passes()
    with torch.no_grad():
        yield from paired(named(b.forward(b.leaves()), {}), want)
    yield from paired(named(b.forward(b.leaves(needs=[])), {}), want)


def poisoned(b: Bench) -> Iterator[Pair]:
    """Nothing depends on memory that was not written: torch fills it with NaN."""
    want = b.passes()
    torch.set_deterministic_debug_mode("warn")
    try:
        got = b.again()
    finally:
        torch.set_deterministic_debug_mode("default")
    yield from paired(got, want)


def two_graphs(b: Bench) -> Iterator[Pair]:
    """A second call between a forward and its backward changes nothing."""
    leaves, others = (
        b.leaves(),
        b.leaves({n: None if x is None else x.flip(0) if x.ndim else x for n, x in b.given().items()}),
    )
    outs = b.forward(leaves)
    kept = [y.detach().clone() for y in outs]
    later = b.forward(others)
    got = b.backward(outs, leaves)
    b.backward(later, others)
    yield from paired(named([y.detach() for y in outs], got), b.passes() | named(kept, {}))


def layouts(b: Bench) -> Iterator[Pair]:
    """Strides do not count."""
    given = {n: None if x is None else x.contiguous() for n, x in b.given().items()}
    yield from paired(b.passes(), b.passes(given=given))


def rows(b: Bench, dims: dict[str, int]) -> Iterator[Pair]:
    """Rows do not depend on each other: reversed, and in two parts. ``dims``: each operand's dimension of rows."""
    given, whole = b.given(), b.passes()
    size = next(x.shape[dims[n]] for n, x in given.items() if x is not None and n in dims)

    def part(index: torch.Tensor) -> tuple[Tensors, dict[str, torch.Tensor]]:
        taken = {n: x.index_select(dims[n], index) if x is not None and n in dims else x for n, x in given.items()}
        leaves = b.leaves(taken)
        outs = b.forward(leaves)
        above = b.above([y for n, y in whole.items() if n.startswith("output")])
        above = [go.index_select(0, index) if go.ndim else go for go in above]
        kept = [y.detach().clone() for y in outs]
        return leaves, named(kept, b.backward(outs, leaves, above))

    reverse = torch.arange(size).flip(0)
    got = part(reverse)[1]
    for name, want in whole.items():
        dim = dims.get(name.removeprefix("gradient of "), 0 if name.startswith("output") and want.ndim else None)
        yield name, got[name] if dim is None else got[name].index_select(dim, reverse), want
    if size > 1 and all(want.ndim for name, want in whole.items() if name.startswith("output")):
        low, high = (part(torch.arange(*ends))[1] for ends in ((0, size // 2), (size // 2, size)))
        for name, want in whole.items():
            dim = dims.get(name.removeprefix("gradient of "), 0 if name.startswith("output") else None)
            yield name, low[name] + high[name] if dim is None else torch.cat([low[name], high[name]], dim), want


RELATIONS: dict[str, Callable[[Bench], Iterator[Pair]]] = {
    one.__name__: one
    for one in (
        reference,
        frozen,
        second_backward,
        unchanged,
        other_consumer,
        residual,
        linear,
        without_grad,
        poisoned,
        two_graphs,
        layouts,
    )
}
EXACT = {"unchanged"}
