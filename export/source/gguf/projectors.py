"""Read ``mmproj-*.gguf``, llama.cpp's encoder of pictures beside a model, as the rest of the multimodal checkpoint.

A text model's config and weights are those of its own file; here are the entries of config.json around them, the processor's
options, and the encoder's weights. Source: llama.cpp ``conversion/*.py``, classes of ``MmprojModel``; ``tools/mtmd/clip.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.source.files import find_projectors
from hybridge.export.source.gguf.architecture import Config, Weight, made, minus_one, one, same, stacked
from hybridge.export.source.gguf.checkpoint import gguf_config
from hybridge.export.source.gguf.file import GgufFile, open_gguf
from hybridge.runtime.pack.gguf import read_header

if TYPE_CHECKING:  # configs are read where PyTorch is not installed
    from torch import Tensor

    from hybridge.export.source.quantization import LazyTensor

ARCHITECTURE = "clip"
PROCESSOR = "preprocessor_config.json"
BILINEAR, BICUBIC = 2, 3


@dataclass(frozen=True, kw_only=True)
class Projector:
    """A kind of encoder, by ``clip.projector_type``.

    Args:
        models: the whole model's type by the text model's.
        tokens: texts of tokens, by their entries in config.json; the first is where a picture goes.
        config: returns the other entries around the text model's config, of the file and the text model's ``vocab_size``.
        processor: returns the processor's options.
        layer: the weights of a layer of the encoder, whose names begin with ``prefix`` and its number; model: the others.
    """

    models: Mapping[str, str]
    tokens: Mapping[str, str]
    config: Callable[[GgufFile], dict[str, Any]]
    processor: Callable[[GgufFile], dict[str, Any]]
    layer: tuple[Weight, ...]
    model: tuple[Weight, ...]
    prefix: str


@dataclass(frozen=True, kw_only=True)
class WholeModel:
    """A GGUF file with its encoder of pictures, if it has one.

    config: the config.json of both; projector: the encoder's file; left_out: why a file beside the model, which is named as an
    encoder is, is not its own.
    """

    config: dict[str, Any]
    projector: GgufFile | None = None
    left_out: str = ""

    @classmethod
    def of(cls, model: GgufFile, named: Path | None = None) -> WholeModel:
        """Return a model with the encoder that is ``named``, or one that lies beside it and fits.

        Raises:
            CheckpointError: the model is damaged, or the encoder that is named is, or of another model.
            UnsupportedModelError: hybridge does not have this kind of model, or of the encoder that is named.
        """
        text = gguf_config(model)
        if named is not None and not named.is_file():
            raise CheckpointError(f"{named} is not a file; give the mmproj-*.gguf that was published with the model.")
        reasons = []
        for path in find_projectors(model.path) if named is None else [named]:
            try:
                projector = _open(path, text)
            except CheckpointError as error:
                if named is not None:
                    raise
                reasons.append(str(error))
            else:
                return cls(config=_whole_config(projector, model, text), projector=projector)
        return cls(config=text, left_out=reasons[0] if reasons else "")


def _open(path: Path, text: Mapping[str, Any]) -> GgufFile:
    """Open an encoder of pictures for the text model whose config.json is ``text``.

    Raises:
        CheckpointError: it is damaged, no such file, or one of another model, which the error says by what differs.
        UnsupportedModelError: hybridge does not have this kind of encoder.
    """
    file = open_gguf(path)
    if file.architecture != ARCHITECTURE:
        raise CheckpointError(
            f"{path} is a model of llama.cpp's architecture {file.architecture!r}, not an encoder of pictures; give the "
            "mmproj-*.gguf that was published with the model."
        )
    kind, model_type = _kind(file), text["model_type"]
    if kind not in PROJECTORS:
        raise UnsupportedModelError(
            f"{path} encodes pictures as llama.cpp's {kind!r} does, which hybridge does not; it reads {', '.join(PROJECTORS)}. "
            "Export the text alone with --no-images."
        )
    if model_type not in PROJECTORS[kind].models:
        raise _foreign(
            path, f"its projector {kind!r} is for {' and '.join(PROJECTORS[kind].models)}, the model is {model_type!r}"
        )
    if (width := file["vision.projection_dim"]) != text["hidden_size"]:
        raise _foreign(path, f"it makes embeddings of {width} numbers, the model's have {text['hidden_size']}")
    return file


def _kind(file: GgufFile) -> Any:
    return file.get("vision.projector_type") or file.get("projector_type")


def _foreign(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is the encoder of pictures of another model: {reason}. Give the mmproj-*.gguf that was published with the "
        "model, or export the text alone with --no-images."
    )


def _whole_config(file: GgufFile, model: GgufFile, text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of encoder and text model together.

    Raises CheckpointError if the model's tokenizer has no token for pictures, or if the file's sizes make no sense.
    """
    projector = PROJECTORS[_kind(file)]
    tokens = read_header(model.path, strings=("tokenizer.ggml.tokens",)).metadata.get("tokenizer.ggml.tokens")
    found = tokens if isinstance(tokens, list) else []
    ids = {name: found.index(token) if token in found else None for name, token in projector.tokens.items()}
    first = next(iter(projector.tokens))
    if ids[first] is None:
        raise _foreign(file.path, f"the tokenizer of {model.path.name} has no token {projector.tokens[first]} for its pictures")
    try:
        entries = projector.config(file)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (its sizes make no sense: {error}); download it again."
        ) from error
    return {
        "model_type": projector.models[text["model_type"]],
        "text_config": dict(text),
        "tie_word_embeddings": text["tie_word_embeddings"],
        **{name: text["vocab_size"] if place is None else place for name, place in ids.items()},
        **entries,
    }


def processor(file: GgufFile) -> dict[str, Any]:
    """Return the options of the picture processor."""
    options = PROJECTORS[_kind(file)].processor(file)
    return options | {"image_mean": list(file["vision.image_mean"]), "image_std": list(file["vision.image_std"])}


def whole_weights(file: GgufFile, text: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the weights of encoder and text model by their names in the whole model.

    Raises UnsupportedModelError for a tensor that hybridge knows no place for.
    """
    projector = PROJECTORS[_kind(file)]
    found = {name.replace("model.", "model.language_model.", 1): each for name, each in text.items()}
    places = [("", "", projector.model)]
    places += [(f"v.blk.{i}.", f"{projector.prefix}.{i}.", projector.layer) for i in range(int(file["vision.block_count"]))]
    used = set[str]()
    for block, prefix, weights in places:
        for name, tensor, sources in made(weights, file.tensors, {}, block=block):
            found.setdefault(prefix + name, tensor)
            used |= set(sources)
    if unknown := [name for name in file.tensors if name not in used and not name.startswith(("a.", "mm.a."))]:
        raise UnsupportedModelError(
            f"{file.path} has tensors that hybridge knows no place for, such as {unknown[0]} ({len(unknown)} in all). Export "
            "the text alone with --no-images, or take the checkpoint that the file was made from."
        )
    return found


def _sizes(file: GgufFile) -> dict[str, Any]:
    return {
        "hidden_size": file["vision.embedding_length"],
        "intermediate_size": file["vision.feed_forward_length"],
        "num_hidden_layers": file["vision.block_count"],
        "num_attention_heads": file["vision.attention.head_count"],
        "patch_size": file["vision.patch_size"],
        "layer_norm_eps": file["vision.attention.layer_norm_epsilon"],
        "vision_use_head": False,
    }


# Qwen3.5

QWEN_PIXELS = {"shortest_edge": 65536, "longest_edge": 16777216}
"""Pixels of the smallest and the largest picture, which are those of every published Qwen3.5 and not in the file."""


def _qwen(file: GgufFile) -> dict[str, Any]:
    if any(file.get("vision.is_deepstack_layers") or ()):
        raise UnsupportedModelError(f"{file.path} feeds pictures into several layers of a Qwen3-VL, which hybridge does not.")
    sizes = _sizes(file)
    vision = {
        "depth": sizes["num_hidden_layers"],
        "num_heads": sizes["num_attention_heads"],
        "spatial_merge_size": file.get("vision.spatial_merge_size") or 2,
        "temporal_patch_size": 2,
        "out_hidden_size": file["vision.projection_dim"],
        "num_position_embeddings": file.tensors["v.position_embd.weight"].shape[0],
        "deepstack_visual_indexes": [],
        **{name: sizes[name] for name in ("hidden_size", "intermediate_size", "patch_size")},
    }
    return {"vision_config": vision}


def _qwen_processor(file: GgufFile) -> dict[str, Any]:
    return {
        "patch_size": file["vision.patch_size"],
        "merge_size": file.get("vision.spatial_merge_size") or 2,
        "temporal_patch_size": 2,
        "resample": BICUBIC,
        "size": QWEN_PIXELS,
    }


def _frames(config: Config, *frames: Tensor) -> Tensor:
    """Return a convolution [N, channel, frame, row, column] of those of single frames."""
    return stacked(frames, dim=2)


QWEN = Projector(
    models={"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"},
    tokens={
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    config=_qwen,
    processor=_qwen_processor,
    layer=(
        *same({"attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2"}),
        *same({"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}),
    ),
    model=(
        Weight(name="model.visual.patch_embed.proj.weight", of=("v.patch_embd.weight", "v.patch_embd.weight.1"), make=_frames),
        *same({"v.patch_embd": "model.visual.patch_embed.proj", "v.position_embd": "model.visual.pos_embed"})[1:],
        *same({"v.post_ln": "model.visual.merger.norm"}),
        *same({"mm.0": "model.visual.merger.linear_fc1", "mm.2": "model.visual.merger.linear_fc2"}),
    ),
    prefix="model.visual.blocks",
)

# SigLIP: Gemma 3 and LFM2-VL

TOWER = "model.vision_tower"
SIGLIP_LAYER = (
    *same({f"attn_{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")}),
    *same({"ln1": "layer_norm1", "ln2": "layer_norm2", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}),
)
SIGLIP = same(
    {
        "v.patch_embd": f"{TOWER}.embeddings.patch_embedding",
        "v.position_embd": f"{TOWER}.embeddings.position_embedding",
        "v.post_ln": f"{TOWER}.post_layernorm",
    }
)


def _pixels_last(config: Config, tensor: Tensor) -> Tensor:
    """Return the matrix [N, row * column * channel] of a convolution [N, channel, row, column]."""
    return tensor.permute(0, 2, 3, 1).flatten(1)


def _lfm2_vl(file: GgufFile) -> dict[str, Any]:
    positions = file.tensors["v.position_embd.weight"].shape[0]
    return {
        "vision_config": {"model_type": "siglip2_vision_model", "num_patches": positions, **_sizes(file)},
        "downsample_factor": file.get("vision.projector.scale_factor") or 2,
        "projector_hidden_size": file.tensors["mm.1.weight"].shape[0],
        "projector_use_layernorm": "mm.input_norm.weight" in file.tensors,
        "projector_bias": "mm.1.bias" in file.tensors,
    }


def _lfm2_vl_processor(file: GgufFile) -> dict[str, Any]:
    return {
        "encoder_patch_size": file["vision.patch_size"],
        "downsample_factor": file.get("vision.projector.scale_factor") or 2,
        "resample": BILINEAR,
    }


LFM2 = Projector(
    models={"lfm2": "lfm2_vl", "lfm2_moe": "lfm2_vl"},
    tokens={"image_token_id": "<image>"},
    config=_lfm2_vl,
    processor=_lfm2_vl_processor,
    layer=SIGLIP_LAYER,
    model=(
        one(f"{TOWER}.embeddings.patch_embedding.weight", "v.patch_embd.weight", _pixels_last),
        *SIGLIP[1:],
        *same({"mm.input_norm": "model.multi_modal_projector.layer_norm"}),
        *same({f"mm.{i}": f"model.multi_modal_projector.linear_{i}" for i in (1, 2)}),
    ),
    prefix=f"{TOWER}.encoder.layers",
)


def _gemma3(file: GgufFile) -> dict[str, Any]:
    side = file["vision.image_size"] // file["vision.patch_size"] // (file.get("vision.projector.scale_factor") or 4)
    vision = {"model_type": "siglip_vision_model", "image_size": file["vision.image_size"], **_sizes(file)}
    return {"vision_config": vision, "mm_tokens_per_image": side * side}


def _gemma3_processor(file: GgufFile) -> dict[str, Any]:
    size = file["vision.image_size"]
    return {"size": {"height": size, "width": size}, "resample": BILINEAR, "do_pan_and_scan": False}


GEMMA3 = Projector(
    models={"gemma3_text": "gemma3"},
    tokens={
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
        "image_token_index": "<image_soft_token>",
    },
    config=_gemma3,
    processor=_gemma3_processor,
    layer=SIGLIP_LAYER,
    model=(
        *SIGLIP,
        one("model.multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight"),
        *same({"mm.soft_emb_norm": "model.multi_modal_projector.mm_soft_emb_norm"}, minus_one),
    ),
    prefix=f"{TOWER}.encoder.layers",
)

# Gemma 4

GEMMA4_TOKENS = 280
"""Embeddings of a picture at most, which are those of every published Gemma 4 and not in the file."""
CLIPPED = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""Linear layers, which some models clip by limits beside the weights."""


def _pool(file: GgufFile) -> int:
    """Return the side of the squares of patches that become one embedding."""
    return file.get("vision.projector.scale_factor") or 3


def _gemma4(file: GgufFile) -> dict[str, Any]:
    vision = _sizes(file) | {
        "model_type": "gemma4_vision",
        "num_key_value_heads": file["vision.attention.head_count"],
        "head_dim": file["vision.embedding_length"] // file["vision.attention.head_count"],
        "rms_norm_eps": file["vision.attention.layer_norm_epsilon"],
        "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        "pooling_kernel_size": _pool(file),
        "position_embedding_size": file.tensors["v.position_embd.weight"].shape[1],
        "use_clipped_linears": "v.blk.0.attn_q.input_max" in file.tensors,
        "standardize": "v.std_scale" in file.tensors,
    }
    del vision["layer_norm_eps"], vision["vision_use_head"]
    return {"vision_config": vision, "audio_config": None}


def _gemma4_processor(file: GgufFile) -> dict[str, Any]:
    pool = _pool(file)
    return {
        "patch_size": file["vision.patch_size"],
        "pooling_kernel_size": pool,
        "max_soft_tokens": min(GEMMA4_TOKENS, file.tensors["v.position_embd.weight"].shape[1] // pool),
        "resample": BICUBIC,
        "do_normalize": False,
    }


def _limit(config: Config, tensor: Tensor) -> Tensor:
    return tensor.reshape(())


GEMMA4 = Projector(
    models={"gemma4_text": "gemma4"},
    tokens={"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>"},
    config=_gemma4,
    processor=_gemma4_processor,
    layer=(
        *same({part: f"{name}.linear" for part, name in CLIPPED.items()}),
        *(
            one(f"{name}.{limit}", f"{part}.{limit}", _limit)
            for part, name in CLIPPED.items()
            for limit in ("input_min", "input_max", "output_min", "output_max")
        ),
        *same({"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ln1": "input_layernorm"}),
        *same({"attn_post_norm": "post_attention_layernorm", "ln2": "pre_feedforward_layernorm"}),
        *same({"ffn_post_norm": "post_feedforward_layernorm"}),
    ),
    model=(
        one(f"{TOWER}.patch_embedder.input_proj.weight", "v.patch_embd.weight", _pixels_last),
        one(f"{TOWER}.patch_embedder.position_embedding_table", "v.position_embd.weight"),
        *(one(f"{TOWER}.{name}", f"v.{name}") for name in ("std_bias", "std_scale")),
        *same({"mm.input_projection": "model.embed_vision.embedding_projection"}),
    ),
    prefix=f"{TOWER}.encoder.layers",
)

PROJECTORS: Mapping[str, Projector] = {"qwen3vl_merger": QWEN, "lfm2": LFM2, "gemma3": GEMMA3, "gemma4v": GEMMA4}
"""By llama.cpp's name of a projector."""
