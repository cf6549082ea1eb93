"""A kind and a family that no other module knows: all questions about a model are answered for them."""

from dataclasses import dataclass

import pytest

from model.definition import flops, memory, parameters, traffic
from model.definition.memory import Layout
from model.families import pattern
from model.families.family import Family
from model.families.nam56r import NAM56R
from model.families.pattern import Layer
from model.families.sizes import expert_parallel
from model.kinds.ends import Entrance, Head, Mtp, Ngram, Structure
from model.kinds.kind import Kernels, Kind, Products
from model.kinds.mla import Dims, Mla
from model.profile import work
from model.profile.work import Documents, Share
from model.reports import description
from model.saved.names import Names
from model.step import muon
from model.step.measured import norms
from patchlane.base.errors import PatchlaneError

WINDOW = Kernels("windows", ("sliding window",))


@dataclass(frozen=True)
class Window(Kind):
    """Attention over the last ``keys`` keys behind a choice of two experts."""

    keys: int

    name = "window"
    label = "Window"
    symbol = "W"
    groups = ("window", "gate")
    matrices = frozenset({"mix"})
    names = (("mixer.mix", "win.m"), ("mixer.expert", "win.experts"))
    buffers = frozenset({"mixer.seen"})
    numbered = "win.experts"
    has_logits = True

    def parts(self):
        h = self.hidden
        return {"Windows": {"mixer.mix.weight": (h, h), "mixer.expert.weight": (2, h, h), "mixer.seen": (7,)}}

    def products(self, seen):
        h = self.hidden
        each = Products("Windows", 4 * h * seen.keys(self.keys), WINDOW)
        gate = Products("gates", 7.0, WINDOW, detached=True)
        return [Products("Windows", 4 * h * h * seen.tokens), each, gate, Products("Windows", 5.0, WINDOW, once=True)]

    def published(self, sequence):
        return 1000 * sequence

    def kept(self):
        return 8 * self.hidden

    def workspace(self):
        return 3 * self.hidden

    def experts(self):
        return 2

    def dispatched(self):
        return self.hidden

    def spread(self):
        return 2 * self.hidden**2

    def idle(self):
        return self.hidden**2

    def paced(self, tokens, row):
        return {"sliding window": row}

    def group(self, name):
        return "gate" if ".gate." in name else "window"


class Toy(Family):
    ffn: int
    layer_count: int

    @property
    def kinds(self):
        return {"window": Window(self.hidden, 4)}

    @property
    def layers(self):
        return tuple(Layer(number, self.kinds["window"]) for number in range(1, self.layer_count + 1))

    @property
    def entrance(self):
        return Entrance(self.hidden, self.vocab, Ngram(orders=(2,), heads=1, rows=3, dim=2), Structure(fields={"f": 5}))

    @property
    def head(self):
        return Head(self.hidden, self.vocab, uses=1 + self.mtp_depths)

    @property
    def mtp(self):
        return Mtp(self.hidden, Mla(self.hidden, self.heads, Dims()), self.ffn)


H = 16
TOY = Toy(name="toy", hidden=H, heads=2, ffn=32, layer_count=3, vocab=64, mtp_depths=0, mtp_loss_coeff=0.0, sequence=10)
ENDS = 64 * H + (3 * 2 + H * 2) + (5 * 64 + H * 64) + H + 64 * H  # words, n-grams, structure, last norm, head


def test_tensors_and_parameters():
    found = parameters.shapes(TOY)
    assert found["decoder.layers.2.mixer.expert.weight"] == (2, H, H) and found["decoder.layers.0.mixer.seen"] == (7,)
    assert parameters.by_part(TOY)["Windows"] == 9 * H**2
    assert parameters.total(TOY) == 9 * H**2 + ENDS
    assert parameters.active(TOY) == 6 * H**2 + ENDS


def test_flops():
    found = flops.built(TOY)
    assert found["Windows"] == 3 * 3 * (4 * H * H + 4 * H * 4)  # of five keys four
    assert set(found) == {"embeddings", "Windows", "gates", "logits"} and found["gates"] == 3 * 2 * 7
    assert flops.megatron(TOY) == 3 * (3 * 10_000 + 2 * H * 64)


def test_memory_and_traffic():
    layout = Layout(data=4, expert=2, micro_batch=2)
    assert memory.stage_parameters(TOY, layout, 0) == (3 * H**2 + ENDS, 3 * H**2)
    parts = memory.estimate(TOY, layout)
    assert parts["activations"] * memory.GIB == pytest.approx(20 * (3 * 8 * H + 3 * H))
    assert traffic.volumes(TOY, layout)["tokens to experts, all-to-all"] == 2 * 20 * 3 * H * 2 / 2
    with pytest.raises(PatchlaneError) as refused:
        expert_parallel(TOY, 3)
    assert "one of 1, 2" in refused.value.remedy


def test_work():
    found = {one.name: one for one in work.of(Share(TOY, Layout()), Documents({6: 1}))}
    keys = 1 + 2 + 3 + 4 + 4 + 4
    assert (found["windows"].kinds, found["windows"].flops) == (("sliding window",), 3 * (3 * 4 * H * keys + 2 * 7 + 5))
    assert found["norm"].moved == 6 * 2 * 5 * (3 * H + H)
    assert found["routing, sorting and indexing"].moved == 6 * 2 * 3 * 2 * H * 4


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("decoder.layers.1.mixer.mix.weight", "model.layers.1.win.m.weight"),
        ("decoder.layers.1.mixer.expert.weight", "model.layers.1.win.experts.weight"),
        ("output_layer.weight", "lm_head.weight"),
    ],
)
def test_names_in_safetensors(key, name):
    names = Names(TOY)
    assert names.exported(key) == name and names.stacked(name) == ("experts" in name)
    assert names.of_expert(name, 12) == name.replace("experts", "experts.12")


def test_groups_of_norms():
    assert set(TOY.norm_groups) == {"window", "gate", "embeddings", "head", "mtp"}
    found = [
        norms.group_of(name, [2, 3], TOY)
        for name in ("decoder.layers.0.mixer.gate.weight", "decoder.layers.1.mixer.mix.weight", "mtp.layers.0.x")
    ]
    assert found == ["gate", "window", "mtp"]
    of_a_stage = [norms.group_of(f"decoder.layers.{place}.x.indexer.y", [5, 6, 12], NAM56R) for place in range(3)]
    assert of_a_stage == ["indexer", "experts", "m2rnn"]


def test_muons_matrices():
    import torch

    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("mix", "gate")})
    muon.mark(model, TOY.matrices)
    marked = [name for name, parameter in model.named_parameters() if getattr(parameter, muon.MARK, False)]
    assert marked == ["mix.weight"]


def test_the_layer_map_and_megatrons_pattern():
    columns = description.layer_map(TOY).columns
    assert [next(iter(column.cells)) for column in columns] == ["Window", "W", "3", "1 2 3"]
    assert pattern.megatron_pattern(TOY.layers, TOY.mtp, 1, (2,)) == "WW|W/+-"


def test_a_family_without_coefficients_keeps_its_size():
    assert TOY.with_coefficients({"aux_loss_coeff": 1.0}) == TOY and TOY.same_model(TOY.model_dump(mode="json"))
    changed = TOY.model_dump(mode="json") | {"hidden": 32}
    assert not TOY.same_model(changed) and not TOY.same_model(NAM56R.model_dump(mode="json"))


def test_coefficients_change_no_layer():
    other = NAM56R.with_coefficients({"aux_loss_coeff": 0.5, "mtp_loss_coeff": None})
    assert (other.experts.aux_loss_coeff, other.mtp_loss_coeff) == (0.5, NAM56R.mtp_loss_coeff)
    assert other != NAM56R and NAM56R.same_model(other.model_dump(mode="json"))
    assert other.coefficients == NAM56R.coefficients | {"aux_loss_coeff": 0.5}
