"""The public ``config.json`` of DeepSeek-V4 and a size, each from the other.

Both forms are read: DeepSeek's, with ``compress_ratios``, and the one that transformers 5.24.0 makes of it and writes,
with ``layer_types`` (models/deepseek_v4/configuration_deepseek_v4.py). A field that says other maths than this project
computes is refused, and so is one that nobody here knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from model.families.deepseek_v4 import MODEL_TYPE, SIZES, Size
from model.kinds.deepseek_v4.attention import Csa, Hca, Sliding, Yarn
from patchlane.base.errors import PatchlaneError

CLASS = "DeepseekV4ForCausalLM"
TYPES = {
    Sliding.name: "sliding_attention",
    Csa.name: "compressed_sparse_attention",
    Hca.name: "heavily_compressed_attention",
}
ROUTERS = ("hash_moe", "moe")  # of the first layers, of the others
# {field: where a size has it}
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab",),
    "hidden_size": ("hidden",),
    "num_attention_heads": ("heads",),
    "num_nextn_predict_layers": ("mtp_depths",),
    "rms_norm_eps": ("rms_norm_eps",),
    "head_dim": ("attention", "head_dim"),
    "q_lora_rank": ("attention", "q_lora_rank"),
    "o_groups": ("attention", "o_groups"),
    "o_lora_rank": ("attention", "o_lora_rank"),
    "sliding_window": ("attention", "window"),
    "rope_theta": ("attention", "rope_theta"),
    "compress_rope_theta": ("attention", "compress_rope_theta"),
    "index_n_heads": ("indexer", "heads"),
    "index_head_dim": ("indexer", "head_dim"),
    "index_topk": ("indexer", "topk"),
    "n_routed_experts": ("experts", "count"),
    "num_experts_per_tok": ("experts", "topk"),
    "moe_intermediate_size": ("experts", "ffn"),
    "routed_scaling_factor": ("experts", "scaling"),
    "swiglu_limit": ("experts", "clamp"),
    "hc_mult": ("hyper", "streams"),
    "hc_sinkhorn_iters": ("hyper", "sinkhorn_iterations"),
    "hc_eps": ("hyper", "eps"),
}
# What is computed here, of fields that may say another thing
FIXED: dict[str, Any] = {
    "model_type": MODEL_TYPE,
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "n_shared_experts": 1,
    "num_key_value_heads": 1,
    "first_k_dense_replace": 0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "router_jitter_noise": 0.0,
}
QUANTISED = ("quantization_config", "expert_dtype")  # of tensors, not of the maths: ``quantised`` tells
# Of use to programs, of initial values, and of transformers' own balancing loss
FREE = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range"}
FREE |= {"bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings"}
FREE |= {"output_router_logits", "router_aux_loss_coef", *QUANTISED}
LAYERS = {"num_hidden_layers", "compress_ratios", "layer_types", "compress_rates", "num_hash_layers", "mlp_layer_types"}
ROPE = {"qk_rope_head_dim", "partial_rotary_factor", "rope_scaling", "rope_parameters"}
YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_positions",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}


def read(said: Mapping[str, Any], file: str) -> Size:
    """The size that the fields ``said`` of ``file`` describe: the named one of these dimensions, or one that is called
    as its ``model_type``.

    Raises PatchlaneError, with file and field, where one is missing, is unknown or says other maths.
    """
    if refused := next(_refused(said), None):
        raise _error(file, refused)
    changed: dict[str, Any] = {"name": MODEL_TYPE}
    for field, (*folders, last) in DIMENSIONS.items():
        place = changed
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = said[field]
    try:
        _layers(said, changed)
        _rope(said, changed)
        found = Size.model_validate(changed)
    except ValidationError as error:
        fault = error.errors()[0]
        where = tuple(part for part in fault["loc"] if isinstance(part, str))
        field = next((field for field, at in DIMENSIONS.items() if at == where), ".".join(where))
        raise _error(file, f"{field}: {fault['msg']}".removeprefix(": ").replace("Value error, ", "")) from error
    except (ValueError, TypeError, AttributeError) as error:  # the latter two: a field of another type
        raise _error(file, str(error)) from error
    same = (size for size in SIZES.values() if as_public(size) == as_public(found))
    return next(same, found)


def quantised(said: Mapping[str, Any]) -> str | None:
    """The field by which tensors are not in the model's dtype, None where they are."""
    return next((field for field in QUANTISED if said.get(field) is not None), None)


def as_public(size: Size) -> Size:
    """The size without what no ``config.json`` says: its name, a row's tokens and the weights of losses."""
    unnamed = size.model_copy(update={"name": MODEL_TYPE, "sequence": Size.model_fields["sequence"].default})
    return unnamed.with_coefficients(dict.fromkeys(size.coefficients, 0.0))


def written(size: Size, dtype: str, eos: int | None) -> dict[str, Any]:
    """Every field as transformers writes it, of tensors in ``dtype`` ("bfloat16") and the end token's id ``eos``.

    Raises PatchlaneError for a size that the public model cannot have.
    """
    a, shown = size.attention, size.model_dump()
    found: dict[str, Any] = FIXED | {"architectures": [CLASS], "dtype": dtype, "use_cache": True}
    del found["topk_method"], found["first_k_dense_replace"]  # which transformers does not have
    for field, at in DIMENSIONS.items():
        value: Any = shown
        for part in at:
            value = value[part]
        found[field] = value
    partial = a.qk_rope_head_dim / a.head_dim
    yarn = {theirs: getattr(a.yarn, ours) for theirs, ours in YARN.items()}
    found |= {
        "n_shared_experts": size.experts.shared,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": None,
        "num_hidden_layers": len(size.compress_ratios),
        "layer_types": [TYPES[layer.kind] for layer in size.layers[::2]],
        "compress_rates": {TYPES[Csa.name]: a.csa_ratio, TYPES[Hca.name]: a.hca_ratio},
        "mlp_layer_types": [ROUTERS[number >= size.hash_layers] for number in range(len(size.compress_ratios))],
        "qk_rope_head_dim": a.qk_rope_head_dim,
        "partial_rotary_factor": partial,
        "max_position_embeddings": int(a.yarn.original_positions * a.yarn.factor),
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": a.rope_theta, "partial_rotary_factor": partial},
            "compress": {"rope_type": "yarn", "rope_theta": a.compress_rope_theta, "partial_rotary_factor": partial}
            | {**yarn, "attention_factor": 1.0},
        },
    }
    if as_public(read(found, size.name)) != as_public(size):
        raise PatchlaneError(f"{size.name} is not what its config.json would say", "choose another size")
    return dict(sorted(found.items()))


def _refused(said: Mapping[str, Any]) -> Iterator[str]:
    """What is missing, unknown or of other maths."""
    yield from (
        f"{field} is missing" for field in ("model_type", "num_hidden_layers", *DIMENSIONS) if field not in said
    )
    for field, value in FIXED.items():
        if said.get(field, value) != value:
            yield f"{field} is {said[field]!r}, and {value!r} is computed here"
    for field in sorted(said.keys() - {*DIMENSIONS, *FIXED, *FREE, *LAYERS, *ROPE}):
        yield f"{field} is unknown"


def _layers(said: Mapping[str, Any], changed: dict[str, Any]) -> None:
    """Ratios and routers. Raises ValueError, with the field."""
    count = said["num_hidden_layers"]
    rates = said.get("compress_rates") or {TYPES[Csa.name]: 4, TYPES[Hca.name]: 128}
    if rates.keys() != {TYPES[Csa.name], TYPES[Hca.name]}:
        raise ValueError(f"compress_rates are of {', '.join(sorted(rates))}")
    of_type = rates | {TYPES[Sliding.name]: 0}
    if said.get("layer_types") is not None:
        if unknown := [one for one in said["layer_types"] if one not in of_type]:
            raise ValueError(f"layer_types has {unknown[0]!r}")
        ratios = [of_type[one] for one in said["layer_types"]]
    elif "compress_ratios" in said:
        ratios, beyond = said["compress_ratios"][:count], said["compress_ratios"][count:]
        if other := [ratio for ratio in ratios if ratio not in of_type.values()]:
            raise ValueError(f"compress_ratios has {other[0]}, and rates are {sorted(of_type.values())}")
        if any(beyond) or len(beyond) > said["num_nextn_predict_layers"]:
            raise ValueError(f"compress_ratios end with {beyond}, and MTP's depths have a window alone")
    else:
        raise ValueError("compress_ratios is missing, or layer_types")
    if len(ratios) != count:
        raise ValueError(f"num_hidden_layers is {count}, and ratios are of {len(ratios)} layers")
    hashed = said.get("num_hash_layers")
    if said.get("mlp_layer_types") is not None:
        routers = said["mlp_layer_types"]
        hashed = routers.count(ROUTERS[0])
        if routers != [ROUTERS[0]] * hashed + [ROUTERS[1]] * (count - hashed):
            raise ValueError(f"mlp_layer_types are not {ROUTERS[0]} first and then {ROUTERS[1]}, one a layer")
    if hashed is None:
        raise ValueError("num_hash_layers is missing, or mlp_layer_types")
    changed |= {"compress_ratios": ratios, "hash_layers": hashed}
    changed["attention"] |= {"csa_ratio": rates[TYPES[Csa.name]], "hca_ratio": rates[TYPES[Hca.name]]}


def _rope(said: Mapping[str, Any], changed: dict[str, Any]) -> None:
    """Channels that turn, and YaRN. Raises ValueError, with the field."""
    width, partial = said.get("qk_rope_head_dim"), said.get("partial_rotary_factor")
    if width is None and partial is None:
        raise ValueError("qk_rope_head_dim is missing")
    if width is None:
        width = int(said["head_dim"] * partial)
    if partial is None:
        partial = width / said["head_dim"]
    if int(partial * said["head_dim"]) != width:
        raise ValueError(f"partial_rotary_factor is {partial}, and qk_rope_head_dim {width} of {said['head_dim']}")
    name = "rope_parameters" if said.get("rope_parameters") is not None else "rope_scaling"
    scaling = said.get(name) or {}
    yarn, place = dict(scaling.get("compress", scaling)), f"{name}.compress" if "compress" in scaling else name
    bases = {"rope_theta": said["compress_rope_theta"], "partial_rotary_factor": partial}
    kind = yarn.pop("rope_type", yarn.pop("type", None))
    yarn.pop("type", None)
    factor = yarn.pop("attention_factor", None if place != name else 1.0)
    if kind != "yarn" or factor != 1:
        raise ValueError(f"{place} is {kind} with the attention factor {factor}, and YaRN with 1.0 is computed here")
    if place != name:
        main = {"rope_type": "default", "rope_theta": said["rope_theta"], "partial_rotary_factor": partial}
        if scaling.keys() != {"main", "compress"} or scaling["main"] != main:
            raise ValueError(f"{name}.main is {scaling.get('main')}, and not {main}")
    for field, value in bases.items():
        if yarn.pop(field, value) != value:
            raise ValueError(f"{place}.{field} is not {value}, which the model has elsewhere")
    if other := sorted(yarn.keys() - YARN.keys()):
        raise ValueError(f"{place}.{other[0]} is unknown")
    if missing := sorted(YARN.keys() - yarn.keys()):
        raise ValueError(f"{place}.{missing[0]} is missing")
    changed["attention"] |= {
        "qk_rope_head_dim": width,
        "yarn": Yarn(**{ours: yarn[theirs] for theirs, ours in YARN.items()}),
    }


def _error(file: str, said: str) -> PatchlaneError:
    return PatchlaneError(
        f"{file}: {said}", "name a folder of DeepSeek-V4's weights whose config.json has the maths of this model"
    )
