"""What an export says to transformers: dimensions, code that stands alone, a tokenizer of bytes."""

import ast
import json
import sys

import pytest

from model.data.source.tokenizers import BYTE_EOD, EOD, ByteTokenizer, TokenizerDescription
from model.data.stored.encoding import Encoding
from model.exported.dims import Dims
from model.families.sizes import SIZES
from model.saved import hub

BYTES = Encoding(tokenizer=ByteTokenizer.description, fields=("structure", "dep_level"), language="python")
OTHERS = {"torch", "numpy", "transformers", "tokenizers"}
NAM56R = [size for size in SIZES.values() if not size.has_public]


@pytest.mark.parametrize("size", NAM56R, ids=lambda size: size.name)
def test_dimensions_come_back_from_json(size):
    dims = Dims.of(json.loads(json.dumps(hub.network(size))))
    assert [(one.number, one.kind, one.indices_from) for one in dims.layers] == [
        (one.number, one.kind, one.indices_from) for one in size.layers
    ]
    assert (dims.hidden, dims.vocab, dims.mamba.heads) == (size.hidden, size.vocab, size.mamba_heads)
    assert dims.ngram.sizes == size.ngram.sizes and dims.structure.fields == size.structure.fields


def test_the_code_imports_its_neighbours_torch_and_transformers_alone():
    files = hub.modelling()
    assert "modeling_nam56r.py" in files and "__init__.py" not in files
    for name, content in files.items():
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and f"{node.module}.py" in files, name
            elif isinstance(node, ast.ImportFrom | ast.Import):
                named = [node.module] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                assert {one.split(".")[0] for one in named} <= OTHERS | sys.stdlib_module_names, name


def test_a_tokenizer_of_bytes_is_bytes():
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer.from_str(hub.text(BYTES, None, 320)["tokenizer.json"].decode())
    for text in ("def f():\n\treturn 'ü€'\r\n", "".join(map(chr, range(0x180))), "  two  spaces  "):
        assert made.encode(text).ids == [*text.encode()] and made.decode([*text.encode()]) == text
    assert made.encode("a<|endoftext|>").ids == [97, BYTE_EOD]


def test_text_ends_where_the_dataset_s_does():
    said = {name: json.loads(content) for name, content in hub.text(BYTES, None, 320).items()}
    begun = said["generation_config.json"]
    assert begun.pop("suppress_tokens") == [*range(257, 320)] and set(begun.values()) == {BYTE_EOD}
    assert said["tokenizer_config.json"]["eos_token"] == EOD and said["tokenizer_config.json"]["split_special_tokens"]
    fields = hub.fields(NAM56R[0], BYTES, 4096, "bfloat16")
    assert fields["eos_token_id"] == BYTE_EOD and fields["max_position_embeddings"] == 4096
    assert "eos_token_id" not in hub.fields(NAM56R[0], None, None, "bfloat16") and hub.text(None, None, 320) == {}


def test_a_tokenizer_s_file_is_the_model_s():
    made = TokenizerDescription(kind="hf", vocab_size=3, eod=2, eod_token="<e>", file="tokenizer.json", sha256="0" * 64)
    encoding = BYTES.model_copy(update={"tokenizer": made})
    assert set(hub.text(encoding, None, 3)) == {"generation_config.json"}
    assert hub.text(encoding, b"{}", 3)["tokenizer.json"] == b"{}"
    assert json.loads(hub.text(encoding, b"{}", 3)["tokenizer_config.json"])["eos_token"] == "<e>"
