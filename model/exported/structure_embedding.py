"""Structure-aware embedding of each token's place in its source code or sentence."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class StructureEmbedding(nn.Module):  # type: ignore[misc]
    """Fields of a token, each embedded ``bottleneck`` wide, summed, projected to ``hidden`` without bias.

    Only the projection starts at 0: it learns from the first step, the embeddings from the second. If both started at
    0, each would keep the other's gradient at 0. The embeddings are not decayed (``_no_weight_decay``).
    """

    def __init__(self, hidden: int, factors: Mapping[str, int], bottleneck: int = 64) -> None:
        """``factors``: {field: its classes}."""
        super().__init__()
        self.factors = dict(factors)
        self.embeddings = nn.ModuleDict({name: nn.Embedding(n, bottleneck) for name, n in self.factors.items()})
        for embedding in self.embeddings.values():
            embedding.weight._no_weight_decay = True
        self.projection = nn.Linear(bottleneck, hidden, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings normal with deviation 0.02, projection 0; as after ``to_empty``."""
        for embedding in self.embeddings.values():
            nn.init.normal_(embedding.weight, std=0.02)
        nn.init.zeros_(self.projection.weight)

    def forward(self, fields: Mapping[str, Tensor]) -> Tensor:
        """[T, hidden] in the projection's dtype, of one int64 [T] a factor, with values from 0 to below its classes.

        Raises ValueError that names missing fields; it ignores further ones.
        """
        missing = self.factors.keys() - fields.keys()
        if missing:
            raise ValueError(f"structure embedding: the batch has no field {', '.join(sorted(missing))}")
        summed = sum(embedding(fields[name]) for name, embedding in self.embeddings.items())  # [T, bottleneck]
        out: Tensor = self.projection(summed)
        return out
