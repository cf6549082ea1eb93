"""Which paths a stack's code cannot run, told without importing it."""

import toy

from model.patched import offers


def test_a_path_lacks_what_its_function_or_word_is_missing(tmp_path):
    rest = {"loss=liger_once", "indexer=triton", "balance=triton", "dsa=tilelang", "sparse=kept"}
    assert set(offers.lacking([tmp_path])) == rest | {"loss=linear"}
    code = "class HybridModel:\n    def __init__(self):\n        {}\n"
    file = "megatron/core/models/hybrid/hybrid_model.py"
    before = toy.write_tree(tmp_path / "before", {file: code.format("pass")})
    after = toy.write_tree(tmp_path / "after", {file: code.format("LinearCrossEntropyModule()")})
    assert "HybridModel.__init__" in offers.lacking([before])["loss=linear"]
    assert set(offers.lacking([after])) == rest
