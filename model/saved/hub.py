"""What makes an export of NAM56R a model that transformers loads with ``trust_remote_code=True``: the fields of
``config.json`` that it reads, the modelling files, the tokenizer's files and ``generation_config.json``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import model
from model.data.source.tokenizers import EOD, FILE
from model.data.stored.encoding import Encoding
from model.families.nam56r import Size

ROOT = Path(model.__file__).parent
COLUMNS = "incremental.py", "lexer.py", "structure.py", "syntax.py"  # of model/data/columns
NEIGHBOUR = re.compile(r"^from model(?:\.\w+)*\.(\w+) import", re.MULTILINE)
ENDS = "bos_token_id", "eos_token_id", "pad_token_id"


def fields(size: Size, encoding: Encoding | None, sequence: int | None, dtype: str) -> dict[str, Any]:
    """Of ``config.json``, beside what an import reads of it. ``sequence``: tokens of a row in training. ``dtype``: of
    most tensors. ``encoding`` None: of a model that does not say how its text is encoded, it takes ids alone."""
    eod = encoding.tokenizer.eod if encoding else None
    return {
        "architectures": ["Nam56rForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_nam56r.Nam56rConfig",
            "AutoModelForCausalLM": "modeling_nam56r.Nam56rForCausalLM",
        },
        "dtype": dtype,
        "hidden_size": size.hidden,
        "num_hidden_layers": len(size.layers),
        "num_attention_heads": size.heads,
        "vocab_size": size.vocab,
        "max_position_embeddings": sequence or size.sequence,
        "tie_word_embeddings": False,
        "use_cache": True,
        **({} if eod is None else dict.fromkeys(ENDS, eod)),
        "network": network(size),
        "fields": [*size.structure.fields] if encoding and encoding.fields else [],
        "language": encoding.language if encoding else "text",
        "tokenizer": encoding.tokenizer.kind if encoding else "byte",
    }


def network(size: Size) -> dict[str, Any]:
    """The dimensions as ``model.exported.dims`` reads them, JSON."""
    a, i, e, m, n = size.attention, size.indexer, size.experts, size.mamba, size.ngram
    return {
        "hidden": size.hidden,
        "vocab": size.vocab,
        "layers": [{"kind": layer.kind, "indices_from": layer.indices_from} for layer in size.layers],
        "attention": {"heads": size.heads, **a.model_dump()},
        "indexer": i.model_dump(include={"heads", "head_dim", "topk"}),
        "experts": e.model_dump(include={"count", "topk", "ffn", "shared_ffn"}),
        "mamba": {
            "heads": size.mamba_heads,
            **m.model_dump(include={"head_dim", "groups", "state", "rank", "A_floor"}),
            "angles": int(m.state * m.rope_fraction) // 2,
        },
        "m2rnn": size.m2rnn.model_dump(),
        "ngram": {"orders": [*n.orders], "heads": n.heads, "sizes": [*n.sizes], "dim": n.dim},
        "structure": size.structure.model_dump(),
    }


def modelling() -> dict[str, bytes]:
    """{file: content} of the model's own code, which stands alone."""
    paths = [path for path in (ROOT / "exported").glob("*.py") if path.name != "__init__.py"]
    return {path.name: _alone(path) for path in (*paths, *(ROOT / "data/columns" / name for name in COLUMNS))}


def text(encoding: Encoding | None, tokenizer: bytes | None, vocab: int) -> dict[str, bytes]:
    """{file: content} of what turns text to ids and back, and of where it ends. ``tokenizer``: the content of the
    ``tokenizer.json`` of a model that does not read bytes, None to leave it out. ``vocab``: the model's ids, of
    which those beyond the tokenizer's mean nothing and are not generated."""
    if encoding is None:
        return {}
    made = encoding.tokenizer
    spare = [*range(made.vocab_size, vocab)]
    begun = dict.fromkeys(ENDS, made.eod) | ({"suppress_tokens": spare} if spare else {})
    found = {"generation_config.json": _json(begun)}
    if made.kind == "byte" or tokenizer is not None:
        found[FILE] = _json(_bytes(made.eod)) if made.kind == "byte" else tokenizer or b""
        said = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        said |= {"split_special_tokens": True}  # text that spells one stays text, as in training
        ends = dict.fromkeys((name.removesuffix("_id") for name in ENDS), made.eod_token or EOD)
        found["tokenizer_config.json"] = _json(said | ends)
    return found


def _alone(path: Path) -> bytes:
    """A file's text with imports of the project's modules as neighbours of it, which transformers looks for."""
    return NEIGHBOUR.sub(r"from .\1 import", path.read_text()).encode()


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _bytes(eod: int) -> dict[str, Any]:
    """A ``tokenizer.json`` of one token a byte, ids 0 to 255, and the end of a document. Its letters are those of the
    ``tokenizers`` library's ByteLevel: printable bytes of Latin-1 are themselves, the others U+0100 on, in order."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    ends = {"id": eod, "content": EOD, "special": True, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [ends | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }
