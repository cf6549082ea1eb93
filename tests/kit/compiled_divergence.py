"""Run by test_divergence in a process of its own: what the indexer's kernels take of a GPU, as JSON.

Argument: the keys of a row. Exits 77 where something is missing.
"""

import json
import sys

import isolated
from compiled import resources

if missing := isolated.activate("cpu"):
    print(missing)
    raise SystemExit(77)

from model.layers.attention import divergence

TYPES = dict.fromkeys(("starts", "ends", "keys", "indices"), "*i64") | {"valid": "*u8", "bounds": "*i32"}
TYPES |= {"first": "i32", "weight": "fp32"}
KEYS, TOPK = int(sys.argv[1]), 256
OWN = {
    "indexer_mask": divergence.block(KEYS) | {"TILE": 64},
    "indexer_choice": divergence.block(TOPK) | {"TOPK": TOPK},
    "indexer_divergence": divergence.block(KEYS) | {"EPS": 1e-10, "GRADS": True},
}

found = {}
for name, own in OWN.items():
    warps = own.pop("num_warps")
    for sparse in (False, True):
        constants = own | {"KEYS": KEYS, "SPARSE": sparse}
        found[f"{name} {sparse}"] = resources(getattr(divergence, name), TYPES, constants, {"num_warps": warps})
print(json.dumps(found))
