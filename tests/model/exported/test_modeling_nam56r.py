"""The model that transformers loads: its rows are documents alone, whatever is beside them, however they are read."""

import copy
import importlib
import json

import decoding
import numpy as np
import pytest
import torch

from model.data.columns.structure import token_columns
from model.data.source.tokenizers import BYTE_EOD, ByteTokenizer, load
from model.data.stored.encoding import Encoding
from model.saved import hub

transformers = pytest.importorskip("transformers")
modelling = importlib.import_module("model.exported.modeling_nam56r")
SIZE = decoding.size("nam56r_tiny")  # without ties of the indexer's scores, of which top-k takes any
TEXTS = ["def naïve(x):\n    return x\n", "import os", "class A:\n    # ü\n    def f(self):\n        return 'x'\n" * 3]
LONG = len(TEXTS[2].encode())
FIELDS = ("structure", "dep_level")


def described(fields=FIELDS, language="python", tokenizer=ByteTokenizer.description):
    return Encoding(tokenizer=tokenizer, fields=fields, language=language)


def made(encoding, size=SIZE):
    """A model of drawn weights, none of which is 0."""
    config = modelling.Nam56rConfig(**hub.fields(size, encoding, None, "float32"))
    torch.manual_seed(0)
    model = modelling.Nam56rForCausalLM(config).eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            wide = tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.1
            tensor.copy_(torch.randn(tensor.shape) * wide + (tensor.dim() == 1))
    return model


@pytest.fixture(scope="module")
def model():
    return made(described())


def ids(text):
    return torch.tensor([[*text.encode()]])


def padded(texts, side):
    """(ids, mask) [texts, the longest], with ends of documents as padding."""
    wide = max(len(text.encode()) for text in texts)
    rows, masks = [], []
    for text in texts:
        own, fill = [*text.encode()], [BYTE_EOD] * (wide - len(text.encode()))
        rows.append(fill + own if side == "left" else own + fill)
        masks.append([0] * len(fill) + [1] * len(own) if side == "left" else [1] * len(own) + [0] * len(fill))
    return torch.tensor(rows), torch.tensor(masks)


@torch.no_grad()
def logits(model, tokens, **more):
    return model(tokens, **more).logits


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_is_its_rows_bit_for_bit(model, side):
    tokens, mask = padded(TEXTS, side)
    whole = logits(model, tokens, attention_mask=mask)
    for at, text in enumerate(TEXTS):
        assert torch.equal(whole[at][mask[at] == 1], logits(model, ids(text))[0])
        assert not whole[at][mask[at] == 0].any()


def test_text_is_generated_row_by_row_bit_for_bit(model):
    tokens, mask = padded(TEXTS, "left")
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": BYTE_EOD, "eos_token_id": 999}
    together = model.generate(tokens, attention_mask=mask, **options)
    for at, text in enumerate(TEXTS):
        one = model.generate(ids(text), **options)
        assert torch.equal(together[at, -6:], one[0, -6:])
        assert torch.equal(one, model.generate(ids(text), use_cache=False, **options))


def test_a_stop_string_ends_a_row_and_its_neighbours_go_on(model, tmp_path):
    for name, content in hub.text(described(), None, SIZE.vocab).items():
        (tmp_path / name).write_bytes(content)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokens, mask = padded(TEXTS[:2], "left")
    options = {"attention_mask": mask, "do_sample": False, "eos_token_id": 999, "pad_token_id": BYTE_EOD}
    free = model.generate(tokens, max_new_tokens=6, **options)[:, -6:]
    stop = chr(next(int(one) for one in free[0] if 32 <= one < 127))
    ended = model.generate(tokens, max_new_tokens=6, stop_strings=[stop], tokenizer=tokenizer, **options)
    first = free[0].tolist().index(ord(stop))
    assert ended[0, tokens.shape[1] :].tolist()[: first + 1] == free[0, : first + 1].tolist()
    assert set(ended[0, tokens.shape[1] + first + 1 :].tolist()) <= {BYTE_EOD}


def test_beams_go_on_from_their_own_states(model):
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "pad_token_id": BYTE_EOD, "eos_token_id": 999}
    with_cache = model.generate(ids(TEXTS[0]), **options)
    assert torch.equal(with_cache, model.generate(ids(TEXTS[0]), use_cache=False, **options))


@pytest.mark.parametrize("cut", [1, 40, LONG - 1])
def test_a_text_is_read_in_parts(model, cut, monkeypatch):
    monkeypatch.setattr(modelling, "BLOCK", 1000)
    model = copy.deepcopy(model).double()
    whole, tokens = logits(model, ids(TEXTS[2])), ids(TEXTS[2])
    with torch.no_grad():
        first = model(tokens[:, :cut])
        second = model(tokens[:, cut:], cache=first.cache)
    assert torch.allclose(torch.cat((first.logits, second.logits), 1), whole, atol=1e-9)
    assert first.cache.get_seq_length() == LONG


def test_columns_are_those_of_training(model):
    content = TEXTS[2].encode()
    columns = token_columns(content, np.arange(len(content)), "python")
    given = {name: torch.from_numpy(columns[name].astype(np.int64))[None] for name in FIELDS}
    assert torch.equal(logits(model, ids(TEXTS[2])), logits(model, ids(TEXTS[2]), structure=given))
    none = {name: torch.zeros_like(column) for name, column in given.items()}
    assert not torch.equal(logits(model, ids(TEXTS[2])), logits(model, ids(TEXTS[2]), structure=none))


def test_an_end_of_a_document_has_columns_of_0_and_is_no_text(model):
    tokens = torch.tensor([[BYTE_EOD, *TEXTS[0].encode()]])
    columns = token_columns(TEXTS[0].encode(), np.arange(len(TEXTS[0].encode())), "python")
    given = {name: torch.from_numpy(np.append(0, columns[name]).astype(np.int64))[None] for name in FIELDS}
    assert torch.equal(logits(model, tokens), logits(model, tokens, structure=given))


def test_a_model_without_columns_takes_none():
    model = made(described(fields=()))
    assert model.config.fields == [] and logits(model, ids("x")).shape == (1, 1, SIZE.vocab)


def test_columns_of_longer_tokens_are_those_of_their_last_byte(tmp_path):
    """ "ü" is two tokens, the first of which ends inside of the character."""
    said = json.loads(hub.text(described(), None, SIZE.vocab)["tokenizer.json"])
    said["model"] |= {"vocab": said["model"]["vocab"] | {"cl": 256, "as": 257}, "merges": [["c", "l"], ["a", "s"]]}
    said["added_tokens"][0] |= {"content": "<eod>", "id": 258}
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    ours = load(f"hf:{tmp_path / 'tokenizer.json'}", "<eod>")
    model = made(described(tokenizer=ours.description))
    model.config._name_or_path = str(tmp_path)
    content = TEXTS[2].encode()
    encoded = ours.encode(content)
    assert len(encoded.ids) < len(content)
    columns = token_columns(content, encoded.ends, "python")
    given = {name: torch.from_numpy(columns[name].astype(np.int64))[None] for name in FIELDS}
    tokens = torch.from_numpy(encoded.ids)[None]
    assert torch.equal(logits(model, tokens), logits(model, tokens, structure=given))


@pytest.mark.parametrize("keep", [1, 5, 10_000])
def test_only_the_last_columns_logits(model, keep):
    tokens, mask = padded(TEXTS, "left")
    whole, last = (logits(model, tokens, attention_mask=mask, logits_to_keep=n) for n in (0, keep))
    assert last.shape[1] == min(keep, tokens.shape[1]) and torch.allclose(last, whole[:, -keep:], atol=1e-5)


def test_a_loss_is_of_the_token_after_each(model):
    tokens, mask = padded(TEXTS, "right")
    labels = tokens.masked_fill(mask == 0, -100)
    found = model(tokens, attention_mask=mask, labels=labels)
    rows = [torch.log_softmax(logits(model, ids(text))[0], -1) for text in TEXTS]
    own = torch.cat([-row[:-1].gather(1, ids(text)[0, 1:, None])[:, 0] for row, text in zip(rows, TEXTS, strict=True)])
    assert abs(found.loss.item() - own.mean().item()) < 1e-4
    found.loss.backward()
    assert model.lm_head.weight.grad.abs().sum() > 0 and model.model["embed_tokens"].weight.grad.abs().sum() > 0
    model.zero_grad()


@pytest.mark.parametrize("name", ["inputs_embeds", "output_attentions", "output_hidden_states"])
def test_what_it_does_not_compute_is_refused(model, name):
    with pytest.raises(ValueError, match=name):
        model(ids("x"), **{name: True})


def test_a_cache_or_a_mask_of_another_batch_is_refused(model):
    with torch.no_grad():
        cache = model(ids("ab")).cache
        with pytest.raises(ValueError, match="1 documents for a batch of 2"):
            model(torch.zeros(2, 1, dtype=torch.int64), cache=cache)
        with pytest.raises(ValueError, match="attention_mask"):
            model(ids("ab"), attention_mask=torch.ones(1, 1, dtype=torch.int64))
