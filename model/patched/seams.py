"""Every place where ``model/`` changes upstream at run time, outside packs: what, why, and on which code it rests.

A seam is called as its ``apply``. Before it acts for the first time, the source of the upstream function that it rests
on is compared with the digests here, which are those of the stacks' code; no pack changes any of these functions. What
a run applies is in its ``run.json``.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import hashlib
import queue
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproducers.base.errors import PatchlaneError

REMEDY = (
    "python -m model.lock check tells whether the tree is the pinned release; for another release read the function, "
    "then python -m pytest tests/model/patched/test_seams.py prints the digests for model/patched/seams.py"
)
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_checked: set[str] = set()


@dataclass(frozen=True)
class Seam:
    """One change of upstream at run time.

    ``upstream``: "module:qualified name" of the function or class that it rests on, or "module" for a whole file.
    ``sha256``: of that source in the default stack; ``also``: in other stacks, where it was read too.
    ``owner``: "ours", or the pack that carries the change.
    ``paths``: {kind: paths} that need it; empty: every run does.
    """

    name: str
    upstream: str
    sha256: str
    reason: str
    apply: Callable[..., Any]
    owner: str = "ours"
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """``apply``, once the code that it rests on is known. PatchlaneError where that is other code."""
        if self.name not in _checked:
            self.check(sys.path)
            _checked.add(self.name)
        return self.apply(*args, **named)

    def check(self, roots: Iterable[str | Path]) -> None:
        """PatchlaneError unless the first of ``roots`` that has the module has the code that the seam rests on."""
        digest = self.digest(roots)
        if digest is None:
            raise PatchlaneError(f"seam {self.name}: {self.upstream} is not in the tree", REMEDY)
        if digest not in (self.sha256, *self.also):
            what = f"seam {self.name}: {self.upstream} is other code than the seam was written for"
            raise PatchlaneError(f"{what} (sha256 {digest}, not {self.sha256})", REMEDY)

    def digest(self, roots: Iterable[str | Path]) -> str | None:
        """sha256 of the code that it rests on in the first of ``roots`` that has the module; None where it is not."""
        text = source(self.upstream, roots)
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def needed(self, chosen: Mapping[str, str]) -> bool:
        """Whether a run of the paths ``chosen``, {kind: name}, applies it."""
        return not self.paths or any(chosen.get(kind) in names for kind, names in self.paths.items())


def source(upstream: str, roots: Iterable[str | Path]) -> str | None:
    """The lines of "module:qualified name", decorators included, in the first of ``roots`` that has the module.

    Nothing is imported. None where there is no such module or name.
    """
    module, _, names = upstream.partition(":")
    place = Path(*module.split("."))
    files = (Path(root) / name for root in roots for name in (place.with_suffix(".py"), place / "__init__.py"))
    file = next(filter(Path.is_file, files), None)
    return None if file is None else _definition(file.resolve(), names)


@functools.cache
def _definition(file: Path, names: str) -> str | None:
    """The lines of the qualified name ``names`` in a file, all of it for ""; looked up once a process."""
    text = file.read_text(encoding="utf-8")
    node: Any = ast.parse(text) if names else None
    for name in filter(None, names.split(".")):
        inside = (child for child in ast.walk(node) if isinstance(child, DEFINITIONS) and child is not node)
        node = next((child for child in inside if child.name == name), None)
        if node is None:
            return None
    if node is None:
        return text
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])


def check(chosen: Mapping[str, str], roots: Iterable[str | Path]) -> None:
    """Before a run starts: PatchlaneError unless every seam that it needs rests on the code in ``roots``."""
    places = list(roots)
    for seam in SEAMS:
        if seam.needed(chosen):
            seam.check(places)


def as_record(chosen: Mapping[str, str], roots: Sequence[str | Path] = ()) -> list[dict[str, str]]:
    """The seams of a run with the paths ``chosen``, {kind: name}, as run.json has them: with the code in ``roots``."""
    return [
        {
            "name": seam.name,
            "upstream": seam.upstream,
            "sha256": seam.digest(roots) or seam.sha256,
            "owner": seam.owner,
        }
        for seam in SEAMS
        if seam.needed(chosen)
    ]


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` within."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _hide(package: str) -> None:
    sys.modules[package] = None  # type: ignore[assignment]  # importing it says that there is none


def _bare(package: str, folder: Path) -> None:
    """``package``, in ``folder``, without its ``__init__``."""
    module = types.ModuleType(package)
    module.__path__ = [str(folder)]
    sys.modules[package] = module


def _final_norm(norm: type) -> None:
    from megatron.core.models.hybrid import hybrid_block

    hybrid_block.TENorm = norm


def _recast(module: Any, kind: type) -> None:
    """``module``, an instance of a base of ``kind`` with the same attributes, is of ``kind`` from now on."""
    module.__class__ = kind


def _gate(router: Any, logits: Callable[[Any], Any]) -> None:
    """``router`` makes its logits by ``logits``."""
    router.gating = logits


def _balance(router: Any, make: Callable[[Any], Any]) -> None:
    """``router`` takes the balance loss of packed documents by what ``make`` makes of pack 39's method."""
    router._apply_packed_seq_aux_loss = make(router._apply_packed_seq_aux_loss)


@contextlib.contextmanager
def _indexer_loss(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """DSA's indexer loss is ``wrap`` of upstream's within."""
    from megatron.core.transformer.experimental_attention_variant import dsa

    with _set(dsa, "FusedDSAIndexerLoss", wrap(dsa.FusedDSAIndexerLoss)):
        yield


def _sparse_mla(ours: Any) -> contextlib.AbstractContextManager[None]:
    """DSA's sparse attention by TileLang's kernels is ``ours`` within."""
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

    return _set(tilelang_dsa, "SparseMLA", ours)


def _fused_mla(layer: Any, embedding: Any, queries: Callable[..., Any]) -> None:
    """``layer``, dense MLA, turns by the tables of ``embedding``, keys by Megatron's fused kernels and queries by
    ``queries``, which has the arguments of its function for these.

    Megatron's checks of the configuration are behind: they refuse the kernels beside DSA, which stays without them. The
    layer's parts keep the model's own configuration. In the whole process a program has all heads of a token: of
    several programs the last goes on into the next token's heads, where they do not divide (NVIDIA/Megatron-LM issue
    7103), and a tuner would choose by time in which order heads are added.
    """
    import triton
    from megatron.core.fusions import fused_mla_yarn_rope_apply as fused

    layer.config = copy.copy(layer.config)
    layer.config.apply_rope_fusion, layer.config.rope_type = True, "yarn"
    layer.rotary_pos_emb = embedding
    makes = rebound(type(layer).get_query_key_value_tensors, {"fused_apply_mla_rope_for_q": queries})
    layer.get_query_key_value_tensors = types.MethodType(makes, layer)
    for kernel in (one for one in vars(fused).values() if hasattr(one, "configs")):  # named otherwise on branch dev
        before = kernel.configs[0].kwargs["BLOCK_H"] if len(kernel.configs) == 1 else 1  # for another model
        heads = max(before, triton.next_power_of_2(layer.config.num_attention_heads))
        kernel.configs = [triton.Config({"BLOCK_H": heads})]


class _Applied:
    """Stands where Megatron multiplies by the weights, once the activation has: what is multiplied stays as it is."""

    def unsqueeze(self, _: int) -> _Applied:
        return self

    def __rmul__(self, weighted: Any) -> Any:
        return weighted


def _apex(accumulate: Callable[..., None]) -> None:
    """``accumulate``(inputs, grads, main_grad) for the Apex extension that Megatron's layers ask for."""
    from megatron.core.tensor_parallel import layers

    layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(wgrad_gemm_accum_fp32=accumulate)
    layers._grad_accum_fusion_available = True


def rebound(function: Callable[..., Any], names: dict[str, Any]) -> types.FunctionType:
    """A copy of ``function``: the same code, with other values for some of the global ``names`` that it reads.

    PatchlaneError where it reads no such name.
    """
    code: types.CodeType = function.__code__
    unknown = [name for name in names if name not in code.co_names or name not in function.__globals__]
    if unknown:
        raise PatchlaneError(f"{code.co_filename}: {code.co_name} does not use {', '.join(unknown)}", REMEDY)
    scope = {**function.__globals__, **names}
    copied = types.FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _replace(module: Any, names: Iterable[str], make: Callable[[Any], Any]) -> None:
    """Each of ``module``'s submodules ``names`` is what ``make`` makes of it."""
    for name in names:
        setattr(module, name, make(getattr(module, name)))


def _rotary(name: str, make: Callable[[Any], Any]) -> None:
    """Megatron's function ``name``, in the whole process, is what ``make`` makes of it, once."""
    from megatron.core.models.common.embeddings import rope_utils

    if getattr(rope_utils, name).__module__ == rope_utils.__name__:
        setattr(rope_utils, name, make(getattr(rope_utils, name)))


def _keep_router_state(model: Any) -> None:
    """Mark the routers' selection bias and token counts as pack 16's Float16Module reads it."""
    for path, buffer in model.named_buffers():
        if path.endswith(("router.expert_bias", "router.local_tokens_per_expert")):
            buffer._keep_fp32 = True


def _platform() -> None:
    import torch
    from megatron.core.fusions import fused_linear_cross_entropy as fusion

    if torch.cuda.is_available():
        return
    with (
        _set(torch.cuda, "is_available", lambda: True),
        _set(torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
    ):
        fusion._get_platform()  # it is asked for once a process


def _thread_queue() -> None:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._results_queue = queue.Queue()


MAMBA3 = "mamba_ssm.modules.mamba3:Mamba3"
MAMBA3_SHA256 = "5f4cea4f314c221b79be1a2f877d45ed961074cb26e1defee1520a6090320e5f"


def _late_clip(scale: Callable[..., None]) -> None:
    """Megatron scales gradients by ``scale``: its optimizers return the norm as a tensor [1], in the whole process."""
    from megatron.core.optimizer import clip_grads

    clip_grads.multi_tensor_scale_tensor_impl = scale


NO_PEFT = Seam(
    "no_peft",
    upstream="liger_kernel.utils",
    sha256="350213e934db56ba5251006ee84d728fe51c8dee7a2c90f1a5e7b55bab3cba2b",
    reason="liger-kernel imports peft only to know whether it is there, and it transformers and sklearn: 7 s",
    apply=_hide,
    also=("b0f0f16daa0d9a5c3c903d6e3eddd311ec3f0a3b26d1d46fd9a9d6debaa3d027",),
)
BARE_MAMBA = Seam(
    "bare_mamba",
    upstream="mamba_ssm",
    sha256="d96b346da56c3c63a32224b5ca1d5af97526c3c95af83496c21c71d51dc2a36c",
    reason="mamba-ssm's __init__ imports the compiled extensions of layers that this model does not have",
    apply=_bare,
)
FINAL_NORM = Seam(
    "final_norm",
    upstream="megatron.core.models.hybrid.hybrid_block:HybridStack.__init__",
    sha256="8f31e2dfaa3491fa9849cbf2825c9d42f089a49293ea832819c38290ca0db1e3",
    reason="the stack's final norm is Transformer Engine's whatever the spec says, which names every other norm",
    apply=_final_norm,
    also=("e790a46ba8d5f4456ae9348c1bc4bf088ee2e7646dc5706ab065fab6d9e54013",),
)
HEAD = Seam(
    "head",
    upstream="megatron.core.tensor_parallel.layers:ColumnParallelLinear.forward",
    sha256="dac5d6cfeaa44ba64dddce0408a797439050439c0010b5fa3d5d25e8eff43a08",
    reason="the output layer hands hidden states to the loss, so that logits are never held whole",
    apply=_recast,
    paths={"loss": ("liger_once", "liger", "torch")},
    also=("8de69f2acd5f7e9bbb7fedc0e4546777b85e59587ee5af3e65d279cf025e8dca",),
)
LINEAR_LOSS = Seam(
    "linear_loss",
    upstream="megatron.core.fusions.fused_linear_cross_entropy:_get_platform",
    sha256="8150ea4d340c0a0d49b13133022e020337c892489bdf852676fa69a8c625b4a4",
    reason="on a CPU pack 10's PyTorch operations compute Megatron's own loss: its dispatch takes GPUs alone",
    apply=_platform,
    paths={"loss": ("linear",)},
)
INDEXER_ROWS = Seam(
    "indexer_rows",
    upstream="megatron.core.transformer.experimental_attention_variant.dsa:"
    "DSAttention.forward.compute_indexer_loss_with_reference_path",
    sha256="5c7a6bf1620edbc89f013bbdd7eb7c2537bae942c44a16f5c867850c72a6e955",
    reason="a query is scored against every key of the packed stream: of R rows a row at a time is an Rth of the work",
    apply=_indexer_loss,
    paths={"indexer": ("triton", "rows")},
)
# Pack 12 makes the functions that are copied. What holds without it too is the divergence, of which ours is a kernel.
INDEXER_KERNELS = Seam(
    "indexer_kernels",
    upstream="megatron.core.transformer.experimental_attention_variant.dsa_indexer_loss:_indexer_kl_terms",
    sha256="7d78bd86a2361f224b954436100b9616ba2f89760e6b0218dfad7c2750f4182d",
    reason="pack 12's kernels, told the bounds of their tiles: its loss finds these by eleven operators, twice a row",
    apply=rebound,
    paths={"indexer": ("triton",)},
)
# Pack 02 changes the class itself. What holds with and without it is which heads have no key: ours has none of them.
SPARSE_KEPT = Seam(
    "sparse_kept",
    upstream="megatron.core.transformer.experimental_attention_variant.ops.sparse_mla:_valid_head_mask",
    sha256="b295a18db4bfe69002626f30d941a6f9a7f59eaca86bc1da623ee2d92e98497e",
    reason="the output is kept; upstream computes it again, and clears queries without a key by passes of their own",
    apply=_sparse_mla,
    paths={"sparse": ("kept",)},
)
ROTARY = Seam(
    "rotary",
    upstream="megatron.core.models.common.embeddings.rope_utils:_apply_rotary_pos_emb_bshd",
    sha256="4a54b66e47ae8722278401fdd948138540678e67e2331067685ef94cdc801282",
    reason="one kernel each way in place of some ten operators; Megatron's own fusion refuses DSA",
    apply=functools.partial(_rotary, "_apply_rotary_pos_emb_bshd"),
    paths={"rope": ("triton",)},
    also=("1f6ee667c5ab9ec294bbb9f3dbf01b23df7b2ee2d2679fbde66a2435a72c59c6",),
)
ROTARY_TABLES = Seam(
    "rotary_tables",
    upstream="megatron.core.models.common.embeddings.rope_utils:apply_rotary_pos_emb",  # calls what is replaced
    sha256="6ebc796813c1ef91d786eef53def01cea8a613d60185be166b6d4f5f232a49ba",
    reason="the angles of a packed batch's tokens are the same in every layer, and found once a forward",
    apply=functools.partial(_rotary, "_apply_rotary_pos_emb_thd"),
    paths={"rope": ("triton",)},
    also=(
        "28168151fcc6caff479c79dbac8da08e89673f1dda2a3731d12d59171d0cf20d",
        "eeb2a5012e07f1d5e538ca394b9726a921823482e54bda241096ffcd0a44e0b9",
    ),
)
FUSED_MLA = Seam(
    "fused_mla",
    upstream="megatron.core.transformer.multi_latent_attention:MLASelfAttention.get_query_key_value_tensors",
    sha256="e19fa46a2a0b1b231d4725127a3bc4c0e6bfec7004492ae2293b890a38709d92",
    reason="Megatron's fused kernels, which write keys and values whole and which it refuses beside DSA; own queries",
    apply=_fused_mla,
    paths={"qkv": ("whole",)},
    also=("c7c142edae56f6510f3073cd976521642fc9ceb8d9727561d95d1da38e402f19",),
)
WHOLE_ABSORBED = Seam(
    "whole_absorbed",
    upstream="megatron.core.transformer.experimental_attention_variant.absorbed_mla:"
    "AbsorbedMLASelfAttention.get_query_key_value_tensors",
    sha256="dcbca47bedf6e6688da04545adb1d9daac8599c402c7d1c9d9a7c5a128730aa3",
    reason="the product and the turned channels are written into one tensor, and their gradients: nothing is joined",
    apply=_recast,
    paths={"qkv": ("whole",)},
    also=("07cad94bb16d04eea30985c9b2ad281583f6de337c47cc5d29b0b06c109fc9fa",),
)
WHOLE_INDEXER = Seam(
    "whole_indexer",
    upstream="megatron.core.transformer.experimental_attention_variant.dsa:DSAIndexer._apply_rope",
    sha256="b7d5b78e414f4863bfb81bf419ceee2ad9d18ad2a3644d3ebf6bb79250e7832e",
    reason="all channels of a head turn: upstream joins them with none, and copies their gradients likewise",
    apply=_recast,
    paths={"qkv": ("whole",)},
    also=("81a1966682c85a9e1126f293cf96b20b056ca257209e3da2784d247e918a4964",),
)
ROUTER_GATE = Seam(
    "router_gate",
    upstream="megatron.core.transformer.moe.router:Router.gating",
    sha256="642d0c2eb9ba6638b306d44a28621be1098d2ab63d14b0ee463194f529be5079",
    reason="Megatron's backward pass makes fp32 copies of the router's inputs and multiplies in TF32",
    apply=_gate,
    paths={"router": ("parts",)},
)
# Pack 39 makes the method that is replaced. What holds without it too is the method that both hand the loss to.
ROUTER_BALANCE = Seam(
    "router_balance",
    upstream="megatron.core.transformer.moe.router:TopKRouter.attach_and_log_load_balancing_loss",
    sha256="f9a34bfea0ed2b51278e32632e808d8ace5460170d611d198a9db03b9fc109d8",
    reason="two kernels forward and one back in place of pack 39's thirty operators each way, in each layer of experts",
    apply=_balance,
    paths={"balance": ("triton",)},
)
WEIGHTED_EXPERTS = Seam(
    "weighted_experts",
    upstream="megatron.core.transformer.moe.experts:TEGroupedMLP.forward",
    sha256="a56ec1eb78c10de2173faead13b381f7517361890d3cf970e19c1fc69b8ccaf6",
    reason="the activation multiplies by the routers' weights, in one kernel: Megatron's own product must not",
    apply=_Applied,
    paths={"moe": ("grouped_fused",)},
    also=("bcad4277e071d0f6d69c145ef1c88886db88a7a968405a4438c110b35b4ffa78",),
)
APEX_WGRAD = Seam(
    "apex_wgrad",
    upstream="megatron.core.tensor_parallel.layers:LinearWithGradAccumulationAndAsyncCommunication.backward",
    sha256="0a5b564dd254cb937e31c7707f240c80980b7b588f2b3bf8e503355a5d2cc5e5",
    reason="Transformer Engine's product adds weight gradients to the fp32 ones, in the place of Apex's extension",
    apply=_apex,
    paths={"wgrad": ("fused",)},
    also=("7bc42ef6c3ffe8f056f37f485e5d4a43024732370b80f21deb69014918de4dee",),
)
MAMBA3_WGRAD = Seam(
    "mamba3_wgrad",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="torch's linear layers, Mamba3's and ours, add weight gradients to Megatron's, multiply in FP8 or in parts",
    apply=_recast,
    paths={"wgrad": ("fused",), "mamba_proj": ("bf16_parts", "fp8_parts")},
)
MAMBA3_TORCH = Seam(
    "mamba3_torch",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="Mamba3's own code with the scan in torch where the TileLang kernels cannot run or are not wanted",
    apply=rebound,
    paths={"mamba3": ("torch", "torch_rows")},
)
MAMBA3_NORM = Seam(
    "mamba3_norm",
    upstream="mamba_ssm.ops.triton.layernorm_gated:RMSNorm",
    sha256="fc8da4ade556216a39c8392eee5cbc9a002489cd69ac01df1b83b63930b38c76",
    reason="another library's RMSNorm with the same weight: mamba-ssm's Triton kernel takes row after row",
    apply=_replace,
    paths={"bc_norm": ("torch", "te")},
)
MAMBA3_ROWS = Seam(
    "mamba3_rows",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="the dense kernels on rows of one length: the state is forgotten where a document begins",
    apply=rebound,
    paths={"mamba3": ("torch_rows", "tilelang_rows", "blocks_rows", "hopper_rows")},
)
MAMBA3_BLOCKS = Seam(
    "mamba3_blocks",
    upstream="mamba_ssm.ops.tilelang.mamba3.mamba3_mimo:_Mamba3Function",
    sha256="f1659b39c326f8c40a1094f9ba53c476d123a08d52a353c0012f63009e05fa7d",
    reason="a backward pass that takes all chunks side by side, not one after the other; angles summed by longer ones",
    apply=rebound,
    paths={"mamba3": ("blocks_rows", "hopper_rows")},
)
ROUTER_STATE = Seam(
    "router_state",
    upstream="megatron.core.transformer.moe.router:TopKRouter._maintain_float32_expert_bias",
    sha256="be11ddf7927d90f7eeed8da065d807e9dfcf88e2d56ddaa1ee3fd15e6718a12e",
    reason="the bias is made fp32 again at the next forward, the counts never are: a bf16 count of 1,300 reads 1,240",
    apply=_keep_router_state,
    also=("3ec187c1f959958161f52a138424778c53349fb5026f57ccecc4d28c55339242",),
)
CHECKPOINT_QUEUE = Seam(
    "checkpoint_queue",
    upstream="megatron.core.dist_checkpointing.strategies.filesystem_async:get_write_results_queue",
    sha256="e395fb0e86a062e2d3ff07879707eb71a06233e26597ec043c3b2cbe618b6b19",
    reason="from thread to thread; Megatron's queue is a process, 3 s to start, that outlives a killed run",
    apply=_thread_queue,
)
LATE_CLIP = Seam(
    "late_clip",
    upstream="megatron.core.optimizer.clip_grads:clip_grad_by_total_norm_fp32",
    sha256="cf07b488fb76a8ae90ba0809d1fbd36e05dcccf24b4644af1621a8b616c01784",
    reason="the clipping factor stays on the device as with Transformer Engine's newer kernel, which 2.13.0 lacks",
    apply=_late_clip,
    paths={"reads": ("late",)},
)
SEAMS = (
    NO_PEFT,
    BARE_MAMBA,
    FINAL_NORM,
    HEAD,
    LINEAR_LOSS,
    INDEXER_ROWS,
    INDEXER_KERNELS,
    SPARSE_KEPT,
    ROTARY,
    ROTARY_TABLES,
    FUSED_MLA,
    WHOLE_ABSORBED,
    WHOLE_INDEXER,
    ROUTER_GATE,
    ROUTER_BALANCE,
    WEIGHTED_EXPERTS,
    APEX_WGRAD,
    MAMBA3_WGRAD,
    MAMBA3_TORCH,
    MAMBA3_NORM,
    MAMBA3_ROWS,
    MAMBA3_BLOCKS,
    ROUTER_STATE,
    CHECKPOINT_QUEUE,
    LATE_CLIP,
)
