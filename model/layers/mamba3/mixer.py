"""The Mamba-3 mixer: mamba-ssm's own ``Mamba3`` on one flat stream of tokens.

On CUDA its TileLang kernels run, elsewhere ``mamba3_mimo_reference`` takes their place in the same module. The kernels
of 2.3.2.post1 have these demands, all met here without reading ``cu_seqlens`` on the host:

- batch 1 (ops/triton/mamba3/angle_dt.py:156) and int32 bounds (ops/tilelang/mamba3/mamba3_mimo.py:66-68);
- documents of any length, empty ones too: chunks start anew at each (ops/triton/mamba3/mamba3_mimo_utils.py:643-647);
- whole chunks in the backward of the kernels for one document (mamba3_mimo_utils.py:544), so they run only then;
- fp32 biases, MIMO projections, D and step sizes (ops/tilelang/mamba3/mamba3_mimo_fwd.py:77-89).

Their set-up does read the bounds on the host, per document (mamba3_mimo_utils.py:659-665 and 1292-1303), and compiles a
kernel for each number of documents (:384), so pad ``cu_seqlens`` with empty documents to a fixed length. Their backward
refuses group counts between 1 and that of the heads (mamba3_mimo_bwd_varlen.py:1390) unless pack 05 is applied.

Of rank 1 it is SISO: its Triton kernels take a stream, packed or of one document, as it is.
Source: mamba_ssm/modules/mamba3.py @ a14b1dff0454a3bc27d9eb31355dc01e4b2490ec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.kinds.recurrent import mamba3 as kind
from model.layers.common import documents, fp32
from model.layers.mamba3 import rows, upstream
from model.patched import seams
from patchlane.base.errors import CannotTestHere

FP32 = ("dt_bias", "D", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o")


class Mamba3Mixer(nn.Module):  # type: ignore[misc]
    """``mamba``, a Mamba3, on a flat stream. ``path`` says which code computes its scan.

    The parameters of ``FP32`` stay fp32 (``fp32.keep``), and carry ``_no_weight_decay = True``: they start at one or a
    quarter, or are steps and rates, and decay would pull them to 0.
    """

    def __init__(self, mamba: nn.Module, path: str, row: int | None = None) -> None:
        """``row``: tokens of a row, for the paths that take the stream as rows (``model.layers.mamba3.rows``)."""
        super().__init__()
        self.mamba, self.path, self.row = mamba, path, row
        self.fp32 = [name for name in FP32 if hasattr(mamba, name)]  # SISO has no projections
        for name in self.fp32:
            fp32.keep(getattr(mamba, name))._no_weight_decay = True

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """[T, h], in ``hidden``'s dtype, of ``hidden`` [T, h] and ``cu_seqlens`` int32 [documents + 1] from 0 to T.

        Raises ValueError for other shapes or dtypes (and, on a CPU, other bounds), TypeError if a cast has changed a
        parameter that the kernels read as fp32.
        """
        _check_bounds(hidden, cu_seqlens)
        if not self.path.startswith("torch"):
            self._check_fp32()
        if self.path.endswith("_rows"):
            assert self.row is not None
            return rows.run_rows(self.mamba, hidden, cu_seqlens, self.row, _change(self.path))
        whole = len(cu_seqlens) == 2 and len(hidden) % self.mamba.chunk_size == 0
        out: Tensor = self.mamba(hidden.unsqueeze(0), cu_seqlens=None if whole else cu_seqlens)
        return out.squeeze(0)

    def _check_fp32(self) -> None:
        cast = [name for name in self.fp32 if getattr(self.mamba, name).dtype != torch.float32]
        if cast:
            raise TypeError(
                f"Mamba-3's kernels read {', '.join(cast)} as float32, but a cast changed the dtype"
                "\n  fix: leave what model/layers/common/fp32.py marks: packs/16_float16module_fp32_contract/notes.md"
            )

    def extra_repr(self) -> str:
        return f"path={self.path}"


def _change(path: str) -> Callable[..., Any]:
    """What a path of rows makes of the module's kernel."""
    if path == "hopper_rows":
        from model.layers.mamba3.hopper.launches import by_blocks_on_hopper

        return by_blocks_on_hopper
    return rows.unchanged


def build_mamba3(
    hidden: int,
    d_state: int = 128,
    expand: int = 2,
    headdim: int = 64,
    ngroups: int = 8,
    rank: int = 4,
    chunk: int = 16,
    rope_fraction: float = 0.5,
    dt_min: float = 0.001,
    dt_max: float = 0.1,
    A_floor: float = 1e-4,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    path: str = "torch",
    row: int | None = None,
    norm: str = "mamba",
) -> Mamba3Mixer:
    """A mixer of width ``hidden`` with upstream's initial values; projections and norms in ``dtype``, the rest fp32.

    ``path``, ``norm``: a path of "mamba3" and of "bc_norm" (``model.kinds.recurrent.mamba3``); where the scan is
    torch's, so is mamba's own norm.

    Raises ValueError if the dimensions do not fit, ImportError without mamba-ssm, CannotTestHere if its kernels
    are wanted and cannot run.
    """
    device = torch.device(device) if device is not None else torch.get_default_device()
    if expand * hidden % headdim or expand * hidden // headdim % ngroups:
        raise ValueError(
            f"Mamba-3: {expand} x {hidden} channels make no whole number of heads of {headdim} in {ngroups} groups"
        )
    module, plain = upstream.import_mamba3(), path.startswith("torch")
    if not plain and path != "triton" and (missing := upstream.kernels_missing(module, device)):
        raise CannotTestHere(f"--path mamba3={path}: {missing}", "--path mamba3=torch")
    mamba = (upstream.torch_class(module.Mamba3) if plain else module.Mamba3)(
        hidden,
        d_state=d_state,
        expand=expand,
        headdim=headdim,
        ngroups=ngroups,
        rope_fraction=rope_fraction,
        dt_min=dt_min,
        dt_max=dt_max,
        A_floor=A_floor,
        is_mimo=rank > 1,
        mimo_rank=rank,
        chunk_size=chunk,
        dtype=dtype,
        device=device,
    )
    if plain or norm == "torch":
        seams.verify(kind.TORCH)
        for name in ("B_norm", "C_norm"):
            setattr(mamba, name, upstream.torch_norm(getattr(mamba, name)))
    return Mamba3Mixer(mamba, path, row)


def _check_bounds(hidden: Tensor, cu_seqlens: Tensor) -> None:
    if hidden.dim() != 2 or cu_seqlens.dtype != torch.int32:
        raise ValueError(f"Mamba-3 wants hidden [T, h], int32 bounds; not {tuple(hidden.shape)}, {cu_seqlens.dtype}")
    documents.check(cu_seqlens, len(hidden))
