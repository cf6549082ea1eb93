"""Run by test_kernels in a process of its own: DeepSeek-V4's kernels compiled for sm_90a at v4_medium's widths.

Prints one JSON object: {kernel, and which: matrix instructions, registers, bytes spilled}.
"""

import json

from compiled import resources

from model.layers.deepseek_v4.hybrid.kernels import attend, choose, pooling, rows, streams, swiglu

HALF, PLACE, NUMBER = "*bf16", "*i64", "i32"
TYPES = {
    **dict.fromkeys(("q", "held", "keys", "o", "do", "above", "dq", "dw", "w", "out", "x", "y", "u"), HALF),
    **dict.fromkeys(("du", "dx", "dy", "dout", "around", "gates", "dkeys"), HALF),
    **dict.fromkeys(("place", "begin", "seen", "since", "until", "tokens"), PLACE),
    **dict.fromkeys(("T", "K", "N", "L", "E", "window", "stretch", "count"), NUMBER),
    **dict.fromkeys(("scale", "plain", "eps", "limit"), "fp32"),
    **{"words": "*i32", "opens": "*i1"},
}
HEADS = {"H": 64, "D": 512, "HEADS": 64, "KEYS": 64}
KEYS = HEADS | {"HEADS": 32}
INDEX = {"H": 64, "D": 128, "HEADS": 64, "WIDE": 128, "KEYS": 64}
MAP = {"C": 16384, "R": 24, "W": 32, "BLOCK": 128, "HALF": True}
STREAMS = {"S": 4, "D": 4096}
SQUARE = {"S": 4, "P": 4, "ITERATIONS": 20, "TOKENS": 32}
QUERIES = {"ROWS": 8, "GROUP": 64, "N": 512, "TURNED": 64, "PLAIN": 512, "HALF": 32, "STEPS": 1, "WEIGHED": False}
NORM = {"ROWS": 1, "GROUP": 1, "N": 4096, "TURNED": 0, "PLAIN": 4096, "HALF": 1, "STEPS": 4, "WEIGHED": True}
TURN = {"N": 512, "TURNED": 64, "H": 64, "HALF": 32}
CSA = {"RATIO": 4, "SLOTS": 8, "D": 512, "BLOCK": 512, "OVERLAP": True}
HCA = {"RATIO": 128, "SLOTS": 128, "D": 512, "BLOCK": 32, "OVERLAP": False}
# (module, kernel, types that are its own, constants, warps, stages)
LAUNCHES = [
    *((attend, "attend", {"chosen": "*i32"}, HEADS | {"WANTED": n, "MASS": n == 3}, 8, 2) for n in (0, 2, 3)),
    *((attend, "query_gradients", {"chosen": "*i32"}, HEADS | {"WANTED": n}, 8, 1) for n in (0, 2, 3)),
    *((attend, "key_gradients", {}, KEYS | {"WANTED": n}, 8, 2) for n in (1, 2, 3)),
    (attend, "mark", {"chosen": "*i32"}, {"BLOCK": 256}, 4, 3),
    *((choose, name, {"chosen": PLACE}, INDEX, 4, 3) for name in ("scored", "among", "among_gradients")),
    (choose, "entry_gradients", {}, INDEX, 4, 3),
    (choose, "best", {"chosen": PLACE}, {"SLOTS": 1024}, 4, 3),
    (choose, "best", {"chosen": PLACE}, {"SLOTS": 16384}, 16, 3),
    (streams, "mapped", {}, MAP | {"TOKENS": 16}, 4, 3),
    (streams, "map_gradients", {"w": "*fp32"}, MAP | {"TOKENS": 64}, 4, 3),
    (streams, "balanced", {"scale": "*fp32"}, SQUARE, 4, 3),
    (streams, "balanced_gradients", {"scale": "*fp32", "w": "*fp32"}, SQUARE | {"D": 4096}, 4, 3),
    (streams, "collapsed", {}, STREAMS | {"BLOCK": 2048}, 4, 3),
    (streams, "weighed", {}, STREAMS | {"BLOCK": 4096}, 8, 3),
    (
        streams,
        "read_gradients",
        {"w": "*fp32"},
        STREAMS | {"R": 24, "W": 32, "TOKENS": 16, "BLOCK": 128, "AROUND": True, "HALF": True},
        4,
        3,
    ),
    (streams, "expanded", {}, STREAMS | {"BLOCK": 2048}, 4, 3),
    (streams, "expanded_gradients", {}, STREAMS | {"BLOCK": 4096}, 8, 3),
    *((rows, name, {}, sizes, 8, 3) for name in ("normed", "normed_gradients") for sizes in (QUERIES, NORM)),
    (rows, "deltas", {}, TURN | {"PLAIN": 512, "HEADS": 8}, 4, 3),
    (rows, "turned", {}, TURN | {"HEADS": 16, "INVERSE": True}, 4, 3),
    *((pooling, name, {}, sizes, 4, 3) for name in ("pooled", "pooled_gradients") for sizes in (CSA, HCA)),
    (swiglu, "weighted_swiglu_forward", {}, {"F": 2048, "BLOCK": 2048}, 4, 3),
    (swiglu, "weighted_swiglu_backward", {}, {"F": 2048, "BLOCK": 2048}, 4, 3),
]
found = {}
for at, (module, name, types, constants, warps, stages) in enumerate(LAUNCHES):
    kernel = getattr(module, name)
    taken = {key: kind for key, kind in (TYPES | types).items() if key in kernel.arg_names}
    found[f"{name} {at}"] = resources(kernel, taken, constants, {"num_warps": warps, "num_stages": stages})
print(json.dumps(found))
