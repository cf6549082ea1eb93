"""DSA's indexer loss a row at a time, for a stream of whole rows of one length, by upstream's own loss of each row."""

import torch


class RowLoss:
    """As upstream's ``FusedDSAIndexerLoss`` (megatron-core 0.19.0, dsa.py:886), which it calls for each row."""

    def __init__(self, whole, row):
        self.whole, self.row = whole, row

    def apply(
        self,
        q,
        weights,
        k,
        query,
        key,
        scale,
        topk,
        coeff,
        mask,
        sparse,
        groups,
        starts,
        ends,
        positions,
        valid_rows,
        per_token,
        use_relu,
    ):
        """Indices of the chosen keys [1, T, topk] int64, -1 where there is none, and the loss, a fp32 scalar.

        q [T, 1, index heads, d], weights [T, 1, index heads], k [T, 1, d]; query, key [T, 1, heads, D]; starts, ends
        [T], the first key that a query may choose and the key after its last; positions [T] of the keys.
        """
        assert mask is None and valid_rows is None and not per_token and len(q) % self.row == 0
        chosen, losses = [], []
        for at in range(0, len(q), self.row):
            of_row = slice(at, at + self.row)
            indices, loss = self.whole.apply(
                q[of_row],
                weights[of_row],
                k[of_row],
                query[of_row],
                key[of_row],
                scale,
                topk,
                coeff,
                None,
                sparse,
                groups,
                starts[of_row] - at,
                ends[of_row] - at,
                None if positions is None else positions[of_row] - at,
                None,
                per_token,
                use_relu,
            )
            chosen.append(indices + at * (indices >= 0))
            losses.append(loss)
        return torch.cat(chosen, dim=1), torch.stack(losses).mean()
