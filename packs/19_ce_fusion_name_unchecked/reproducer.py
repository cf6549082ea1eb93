# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""A configuration takes any name for cross_entropy_fusion_impl, and the first loss ends in an UnboundLocalError.

``LanguageModule.compute_language_model_loss`` knows "te" and "native". Of another name, be it "linear", which branch
dev has, or a slip of the pen, nobody is told before all ranks have built the model and made a forward pass; then
``loss`` is not bound, and the message names neither the setting nor its value.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st

from reproducers import probe


def minimal() -> None:
    """A loss by a name that only branch dev knows."""
    from types import SimpleNamespace as Some

    import torch
    from megatron.core.models.common.language_module.language_module import LanguageModule
    from megatron.core.transformer import TransformerConfig

    options = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
    fusion = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "linear"}
    try:
        model = Some(config=TransformerConfig(**options, **fusion))
    except ValueError as error:
        return print("refused:", error)
    labels, logits = torch.zeros(1, 3, dtype=torch.long), torch.zeros(3, 1, 8)
    LanguageModule.compute_language_model_loss(model, labels, logits)


LOSS = "megatron.core.models.common.language_module.language_module"
UNBOUND = probe.Signature("UnboundLocalError", "loss", "megatron/core/models/common/language_module/language_module.py")
KNOWN = ("native", "te")
WRONG = ("linear", "Native", "TE", "", "nativ", "te ", "transformer_engine", "none")
REFUSED = (ValueError, AssertionError)  # both are in use in upstream's configurations
SETTING = "cross_entropy_fusion_impl"


def config(p: probe.Probe, kind: str = "TransformerConfig", **options: Any) -> Any:
    """A configuration of a kind, silently: Transformer Engine's loss warns of itself."""
    where = {
        "TransformerConfig": "megatron.core.transformer.transformer_config",
        "MLATransformerConfig": "megatron.core.transformer.transformer_config",
        "ModelParallelConfig": "megatron.core.model_parallel_config",
    }[kind]
    sizes = {} if kind == "ModelParallelConfig" else {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(p.upstream(where), kind)(**sizes, **options)


def fused(name: Any, on: bool = True) -> dict[str, Any]:
    return {"cross_entropy_loss_fusion": on, SETTING: name}


def loss(p: probe.Probe, settings: Any) -> torch.Tensor:
    """The loss of three tokens of two rows by the module's own method."""
    groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups(["tp"])
    module = SimpleNamespace(config=settings, pg_collection=groups, tp_group=groups.tp)
    generator = torch.Generator().manual_seed(p.seed)
    logits, labels = torch.randn(3, 2, 8, generator=generator), torch.tensor([[0, 5, 7], [1, 1, 2]])
    made: torch.Tensor = p.upstream(LOSS).LanguageModule.compute_language_model_loss(module, labels, logits)
    return made


def refusal(call: Callable[[], Any]) -> str:
    """ "" where ``call`` returns, else the text of what refuses, or another error's type."""
    try:
        call()
    except REFUSED as error:
        return str(error)
    except Exception as error:
        return f"!{type(error).__name__}"
    return ""


def told(said: str, name: str) -> bool:
    """Whether a refusal names the setting and its value."""
    return SETTING in said and name in said.replace(SETTING, "") and not said.startswith("!")


def check_names(p: probe.Probe) -> None:
    """Of each name: whether the configuration refuses it, and what a loss by it ends in."""
    for name in WRONG:

        def whole(name: str = name) -> str:
            try:
                return f"a loss of {loss(p, config(p, **fused(name)))}"
            except REFUSED:
                return "refused"

        said = p.attempt(f"{name!r}: a loss", whole, UNBOUND)
        if said is not None:
            p.guard(f"{name!r}: a loss by some other name", said != "refused", 0, reference="refused")
    for kind in ("TransformerConfig", "MLATransformerConfig", "ModelParallelConfig"):
        silent = sum(not told(refusal(partial(config, p, kind, **fused(name))), name) for name in WRONG)
        p.error(
            f"{kind}: names that are taken, or refused without being named",
            silent,
            0,
            reference="refused, with the setting and its value",
            bug_above=1,
        )


def check_later(p: probe.Probe) -> None:
    """A name that is set once the configuration is made, and one that a copy of it gets."""
    settings = config(p, **fused("native"))
    settings.cross_entropy_fusion_impl = "linear"
    said = p.attempt("set later: a loss", lambda: refusal_or_value(partial(loss, p, settings)), UNBOUND)
    if said is not None:
        p.guard("set later: refused without being named", not told(said, "linear"), 0, reference="refused")
    taken = refusal(lambda: dataclasses.replace(config(p, **fused("native")), **{SETTING: "linear"}))
    p.error("replaced: taken", not told(taken, "linear"), 0, reference="refused", bug_above=1)


def refusal_or_value(call: Callable[[], Any]) -> str:
    """As ``refusal``, but that any other error goes on."""
    try:
        return f"a value: {call()}"
    except REFUSED as error:
        return str(error)


def check_drawn(p: probe.Probe) -> None:
    """Names that nobody foresees."""

    def taken(name: str) -> float:
        return 0.0 if name in KNOWN else float(not told(refusal(partial(config, p, **fused(name))), name))

    names = st.text(st.sampled_from("natievTEl_ -1"), min_size=0, max_size=8)
    p.drawn("drawn: a name that is taken", taken, 0, space={"name": names}, count=40, reference="refused", bug_above=1)


def check_neighbours(p: probe.Probe) -> None:
    """What is taken stays so: both names, any name where losses are not fused, copies, and the losses themselves."""
    wrong = []
    for kind in ("TransformerConfig", "MLATransformerConfig", "ModelParallelConfig"):
        wrong += [name for name in KNOWN if refusal(partial(config, p, kind, **fused(name)))]
        wrong += [name for name in (*WRONG, None) if refusal(partial(config, p, kind, **fused(name, on=False)))]
        wrong += ["by default"] * bool(refusal(partial(config, p, kind, cross_entropy_loss_fusion=True)))
    p.guard("names that are refused though nothing is wrong", len(wrong), 0, reference="none")
    plain, native = config(p), config(p, **fused("native"))
    off = config(p, **fused("linear", on=False))
    p.digest("losses: by default, native, not fused by another name", *(loss(p, one) for one in (plain, native, off)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        where = p.upstream("megatron.core.transformer.transformer_config").TransformerConfig
        for name in KNOWN:
            where(num_layers=1, hidden_size=8, num_attention_heads=1, **fused(name))
    ours = sum("cross entropy" in str(one.message).lower() for one in said)
    p.guard("warnings of the loss's kind, both names", ours, 1, reference="one, of Transformer Engine's")


def prepare(p: probe.Probe) -> None:
    """For ``minimal``."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"


def reproduce(p: probe.Probe) -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    p.megatron_cpu()
    check_neighbours(p)
    check_names(p)
    check_later(p)
    check_drawn(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=19, package="megatron", minimal=minimal, prepare=prepare)
