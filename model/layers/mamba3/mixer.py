"""The Mamba-3 MIMO mixer: mamba-ssm's own ``Mamba3`` on one flat stream of tokens.

On CUDA its TileLang kernels run, elsewhere ``mamba3_mimo_reference`` takes their place in the same module. What the
kernels of 2.3.2.post1 want of a stream, all met here without reading ``cu_seqlens`` on the host:

- batch 1 (ops/triton/mamba3/angle_dt.py:156) and int32 bounds (ops/tilelang/mamba3/mamba3_mimo.py:66-68);
- documents of any length, empty ones too: chunks start anew at each (ops/triton/mamba3/mamba3_mimo_utils.py:643-647);
- the kernels for one document want whole chunks in the backward (mamba3_mimo_utils.py:544), so they run only then;
- fp32 biases, MIMO projections, D and step sizes (ops/tilelang/mamba3/mamba3_mimo_fwd.py:77-89).

Their set-up does read the bounds on the host, per document (mamba3_mimo_utils.py:659-665 and 1292-1303), and compiles a
kernel for each number of documents (:384), so pad ``cu_seqlens`` with empty documents to a fixed length. Their backward
refuses group counts between 1 and that of the heads (mamba3_mimo_bwd_varlen.py:1390) unless pack 05 is applied.
Source: mamba_ssm/modules/mamba3.py @ a14b1dff0454a3bc27d9eb31355dc01e4b2490ec.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from model.layers.common import paths
from model.layers.mamba3 import rows, upstream

Path = Literal["auto", "torch", "tilelang", "torch_rows", "tilelang_rows"]
FP32 = ("dt_bias", "D", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o")


class Mamba3Mixer(nn.Module):  # type: ignore[misc]
    """``mamba``, a Mamba3, on a flat stream. ``path`` says which code computes its scan, ``reason`` why that one.

    The parameters of ``FP32`` carry ``_keep_fp32 = True``: whoever casts the model has to leave them fp32.
    """

    def __init__(self, mamba: nn.Module, path: str, reason: str, row: int | None = None) -> None:
        """``row``: tokens of a row, for the paths that take the stream as rows (``model.layers.mamba3.rows``)."""
        super().__init__()
        self.mamba, self.path, self.reason, self.row = mamba, path, reason, row
        for name in FP32:
            getattr(mamba, name)._keep_fp32 = True

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """[T, h], in ``hidden``'s dtype, of ``hidden`` [T, h] and ``cu_seqlens`` int32 [documents + 1] from 0 to T.

        Raises ValueError for other shapes or dtypes (and, on a CPU, other bounds), TypeError where the kernels would be
        handed a parameter that a cast took to another dtype.
        """
        _check_bounds(hidden, cu_seqlens)
        if self.path.startswith("tilelang"):
            self._check_fp32()
        if self.path.endswith("_rows"):
            assert self.row is not None
            return rows.run_rows(self.mamba, hidden, cu_seqlens, self.row)
        whole = len(cu_seqlens) == 2 and len(hidden) % self.mamba.chunk_size == 0
        out: Tensor = self.mamba(hidden.unsqueeze(0), cu_seqlens=None if whole else cu_seqlens)
        return out.squeeze(0)

    def _check_fp32(self) -> None:
        cast = [name for name in FP32 if getattr(self.mamba, name).dtype != torch.float32]
        if cast:
            raise TypeError(
                f"Mamba-3's kernels read {', '.join(cast)} as float32, a cast changed that"
                "\n  mend: leave parameters marked _keep_fp32 alone (pack 16: python -m reproducers.explain 16)"
            )

    def extra_repr(self) -> str:
        return f"path={self.path} ({self.reason})"


def build_mamba3(
    hidden: int, d_state: int = 128, expand: int = 2, headdim: int = 64, ngroups: int = 8, rank: int = 4,
    chunk: int = 16, rope_fraction: float = 0.5, dt_min: float = 0.001, dt_max: float = 0.1, A_floor: float = 1e-4,
    dtype: torch.dtype | None = None, device: torch.device | str | None = None, path: Path = "auto",
    row: int | None = None,
) -> Mamba3Mixer:  # fmt: skip
    """A mixer of width ``hidden`` with upstream's initial values; projections and norms in ``dtype``, the rest fp32.

    Raises ValueError where the dimensions do not fit, ImportError without mamba-ssm, CannotTestHere for a ``path`` that
    ``device`` cannot take.
    """
    device = torch.device(device) if device is not None else torch.get_default_device()
    if expand * hidden % headdim or expand * hidden // headdim % ngroups:
        raise ValueError(
            f"Mamba-3: {expand} x {hidden} channels make no whole number of heads of {headdim} in {ngroups} groups"
        )
    chosen, reason = choose_path(path, device, _no_rows(row, chunk))
    kind = upstream.import_mamba3().Mamba3
    plain = chosen.startswith("torch")
    mamba = (upstream.torch_class(kind) if plain else kind)(
        hidden, d_state=d_state, expand=expand, headdim=headdim, ngroups=ngroups, rope_fraction=rope_fraction,
        dt_min=dt_min, dt_max=dt_max, A_floor=A_floor, is_mimo=True, mimo_rank=rank, chunk_size=chunk,
        dtype=dtype, device=device,
    )  # fmt: skip
    if plain:
        mamba.B_norm, mamba.C_norm = (upstream.torch_norm(norm) for norm in (mamba.B_norm, mamba.C_norm))
    return Mamba3Mixer(mamba, chosen, reason, row)


def _no_rows(row: int | None, chunk: int) -> str | None:
    """Why the stream cannot be taken as rows; None when it can."""
    if row is None:
        return "the stream has no rows of one length"
    return f"rows of {row} tokens are no whole chunks of {chunk}" if row % chunk else None


def choose_path(requested: str, device: torch.device, no_rows: str | None = None) -> tuple[str, str]:
    """(path, why) for a mixer on ``device``; "auto" takes rows on CUDA wherever a stream is made of them.

    Raises CannotTestHere for an unknown name and for a path that is asked for and cannot run, ImportError without
    mamba-ssm.
    """
    missing = upstream.kernels_missing(upstream.import_mamba3(), device) or None
    able = {"tilelang_rows": missing or no_rows, "tilelang": missing, "torch": None, "torch_rows": no_rows}
    found = paths.choose("Mamba-3", requested, able)
    return found.name, found.reason


def parameters(
    hidden: int, d_state: int = 128, expand: int = 2, headdim: int = 64, ngroups: int = 8, rank: int = 4,
    rope_fraction: float = 0.5,
) -> dict[str, int]:  # fmt: skip
    """Number of parameters by the name they have in ``Mamba3``; the mixer's total is their sum."""
    inner = expand * hidden
    heads = inner // headdim
    return {
        "in_proj.weight": hidden
        * (2 * inner + 2 * d_state * ngroups * rank + 3 * heads + int(d_state * rope_fraction) // 2),
        "out_proj.weight": inner * hidden,
        "B_norm.weight": d_state,
        "C_norm.weight": d_state,
        **dict.fromkeys(("dt_bias", "D"), heads),
        **dict.fromkeys(("B_bias", "C_bias"), heads * rank * d_state),
        **dict.fromkeys(("mimo_x", "mimo_z", "mimo_o"), heads * rank * headdim),
    }


def _check_bounds(hidden: Tensor, cu_seqlens: Tensor) -> None:
    fits = hidden.dim() == 2 and cu_seqlens.dim() == 1 and len(cu_seqlens) >= 2 and cu_seqlens.dtype == torch.int32
    if fits and cu_seqlens.device.type == "cpu":  # reading them on a GPU would make the host wait
        fits = bool(cu_seqlens[0] == 0 and cu_seqlens[-1] == len(hidden) and (cu_seqlens.diff() >= 0).all())
    if not fits:
        raise ValueError(
            f"Mamba-3 wants hidden [T, h] and int32 cu_seqlens that rise from 0 to T, got {tuple(hidden.shape)} and"
            f" {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
