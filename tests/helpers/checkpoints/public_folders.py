"""Checkpoint folders in the form that they are published in, scaled down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mtp_reference import published, random_mtp
from safetensors.torch import load_file, save_file
from tiny import lively
from tokenizer_folders import SPECIAL, TEXT, added_token, save_vocabulary, write_json
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForImageTextToText
from zoo import VARIANTS

from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime.artifact.options import ExportOptions

CHAT_TEMPLATES = Path(__file__).parent / "chat_templates"
PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())
"""By family: the configs of its encoders, the processor's options, and the tokenizer's config."""
TOKENS = 330
END_OF_DOCUMENT, END_OF_TURN = 0, 2


def random_whole(config: Any, seed: int) -> Any:
    """A model of text and pictures with random weights, in float32."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()


def save_byte_tokenizer(folder: Path, special: list[str], size: int) -> None:
    """Write a whole tokenizer.json whose first ids are the special tokens'."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT, vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))


def save_qwen3_5(folder: Path, seed: int = 0) -> None:
    """Write a Qwen3.5 folder: pictures and text in one config, ``mtp.*`` beside the model, and no tokenizer.json.

    A document ends with ``<|endoftext|>``, says the config; a turn with ``<|im_end|>``, says the tokenizer's config alone.
    """
    text = {**VARIANTS["qwen3_5_text"][0], "vocab_size": TOKENS, "eos_token_id": END_OF_DOCUMENT}
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=PUBLISHED["qwen3_5_text"]["vision"])
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    path = folder / "model.safetensors"
    target = load_checkpoint(folder).model
    save_file(load_file(path) | published(target, random_mtp(target, seed)), path, metadata={"format": "pt"})
    save_vocabulary(folder, TOKENS)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": SPECIAL[END_OF_TURN],
            "pad_token": SPECIAL[END_OF_DOCUMENT],
            "added_tokens_decoder": {str(i): added_token(token) for i, token in enumerate(SPECIAL)},
            "chat_template": (CHAT_TEMPLATES / "qwen3_5.jinja").read_text(),
        },
    )


# Qwen3.5 with pictures

QWEN_SPECIAL = [*SPECIAL, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
QWEN_IDS = {
    "image_token_id": QWEN_SPECIAL.index("<|image_pad|>"),
    "video_token_id": QWEN_SPECIAL.index("<|video_pad|>"),
    "vision_start_token_id": QWEN_SPECIAL.index("<|vision_start|>"),
    "vision_end_token_id": QWEN_SPECIAL.index("<|vision_end|>"),
}
"""Ids of tokens in config.json."""
QWEN_OPTIONS = ExportOptions(
    max_seq_len=160, prefill_chunk=16, verify_len=5, snapshot_slots=2, image_tokens=(6, 20), mtp=True, draft_len=3
)


def save_qwen3_5_pictures(folder: Path, seed: int = 0, *, mtp: bool = True, kind: str = "qwen3_5", **text_changes: Any) -> None:
    """Write a Qwen3.5 folder that takes pictures: the processor's options and the tokens for pictures are in it.

    Its config.json has the fields of Qwen3.5-0.8B's, scaled down; the encoder takes 20 tokens, so that a picture of 5 x 4 may
    end inside a chunk.
    """
    sizes = VARIANTS[f"{kind}_text"][0]
    text = {
        **sizes,
        "vocab_size": TOKENS,
        "eos_token_id": END_OF_DOCUMENT,
        "head_dim": 32,
        "rope_parameters": PUBLISHED["qwen3_5"]["rope"],
        **text_changes,
    }
    vision = {**PUBLISHED["qwen3_5"]["vision"], "model_type": kind, "out_hidden_size": sizes["hidden_size"]}
    config = AutoConfig.for_model(kind, text_config={"model_type": f"{kind}_text", **text}, vision_config=vision, **QWEN_IDS)
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    if mtp:
        path, target = folder / "model.safetensors", load_checkpoint(folder).model
        save_file(load_file(path) | published(target, random_mtp(target, seed)), path, metadata={"format": "pt"})
    save_processor_of_films(folder)


def save_processor_of_films(folder: Path) -> None:
    """Write the processor's options and the tokenizer of a model whose processor is Qwen3-VL's."""
    write_json(folder / "preprocessor_config.json", PUBLISHED["qwen3_5"]["pictures"])
    save_byte_tokenizer(folder, QWEN_SPECIAL, TOKENS)
    added = {str(i): added_token(token) for i, token in enumerate(QWEN_SPECIAL)}
    write_json(folder / "tokenizer_config.json", {**PUBLISHED["qwen3_5"]["tokenizer"], "added_tokens_decoder": added})
    (folder / "chat_template.jinja").write_text((CHAT_TEMPLATES / "qwen3_5.jinja").read_text())


# LFM3-VL

LFM3_VL_OPTIONS = replace(QWEN_OPTIONS, mtp=False)


def save_lfm3_vl(folder: Path, seed: int = 0) -> None:
    """Write an LFM3-VL folder with the fields of ``Lfm3VlConfig``, scaled down, and the tokens of ``Lfm3VlProcessor``."""
    text = {**VARIANTS["lfm3"][0], "vocab_size": TOKENS, "eos_token_id": END_OF_TURN, "model_type": "lfm3"}
    config = AutoConfig.for_model(
        "lfm3_vl", text_config=text, vision_config=PUBLISHED["lfm3_vl"]["vision"], **QWEN_IDS, projector_hidden_size=56
    )
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    save_processor_of_films(folder)


# LFM2-VL

PICTURE = {"placeholder": "<image>", "begin": "<|image_start|>", "end": "<|image_end|>", "thumbnail": "<|img_thumbnail|>"}
LFM2_VL_SPECIAL = [
    *("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *PICTURE.values(),
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)),
]
LFM2_VL_TOKENS = 340
LFM2_VL_OPTIONS = ExportOptions(max_seq_len=160, prefill_chunk=16, verify_len=5, snapshot_slots=2, image_tokens=(6, 16))


def save_lfm2_vl(folder: Path, seed: int = 0, **config_changes: Any) -> None:
    """Write an LFM2-VL folder: text and pictures in one config, the processor's options, and tokens for pictures.

    The tokenizer is a whole tokenizer.json, as LiquidAI's are; its ids are those of config.json.
    """
    text = {**VARIANTS["lfm2"][0], "vocab_size": LFM2_VL_TOKENS, "eos_token_id": LFM2_VL_SPECIAL.index("<|im_end|>")}
    config = AutoConfig.for_model(
        "lfm2_vl",
        text_config={"model_type": "lfm2", **text},
        vision_config=PUBLISHED["lfm2_vl"]["vision"],
        image_token_id=LFM2_VL_SPECIAL.index("<image>"),
        projector_hidden_size=56,
        **config_changes,
    )
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", PUBLISHED["lfm2_vl"]["pictures"])
    write_json(folder / "processor_config.json", {"processor_class": "Lfm2VlProcessor", "use_image_special_tokens": True})
    save_byte_tokenizer(folder, LFM2_VL_SPECIAL, LFM2_VL_TOKENS)
    write_json(folder / "tokenizer_config.json", PUBLISHED["lfm2_vl"]["tokenizer"])
    (folder / "chat_template.jinja").write_text((CHAT_TEMPLATES / "lfm2_vl.jinja").read_text())


# Gemma 3

GEMMA3_SPECIAL = [
    *("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
]
GEMMA3_NAMES = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
GEMMA3_ROWS, GEMMA3_TOKENS = 16, 340
GEMMA3_OPTIONS = ExportOptions(max_seq_len=160, prefill_chunk=10, verify_len=5, snapshot_slots=2)


def save_gemma3(folder: Path, seed: int = 0, **text_changes: Any) -> None:
    """Write a Gemma 3 folder: text and pictures of one size in one config, the processor's options, and tokens for pictures.

    A layer of full attention is before another one, or what its rows of a picture see would change no logits.
    """
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    text = {
        **VARIANTS["gemma3_text"][0],
        "vocab_size": GEMMA3_TOKENS,
        "eos_token_id": GEMMA3_SPECIAL.index("<end_of_turn>"),
        "num_hidden_layers": len(layers),
        "layer_types": layers,
        "sliding_window": 23,
    }
    config = AutoConfig.for_model(
        "gemma3",
        text_config={"model_type": "gemma3_text", **text, **text_changes},
        vision_config=PUBLISHED["gemma3"]["vision"],
        mm_tokens_per_image=GEMMA3_ROWS,
        **{f"{name}_index": GEMMA3_SPECIAL.index(token) for name, token in GEMMA3_NAMES.items()},
    )
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_json(folder / "preprocessor_config.json", PUBLISHED["gemma3"]["pictures"])
    write_json(folder / "processor_config.json", {"image_seq_length": GEMMA3_ROWS, "processor_class": "Gemma3Processor"})
    save_byte_tokenizer(folder, GEMMA3_SPECIAL, GEMMA3_TOKENS)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            **GEMMA3_NAMES,
        },
    )
    template = (CHAT_TEMPLATES / "gemma3.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template.replace("{{ boi_token if", "{{ '<start_of_image>' if"))


# Gemma 4

GEMMA_SPECIAL = [
    *("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>"),
    *("<|audio>", "<audio|>", "<|audio|>", "<|video|>"),
]
GEMMA_NAMES = {
    "boi_token_id": "<|image>", "eoi_token_id": "<image|>", "image_token_id": "<|image|>", "video_token_id": "<|video|>",
    "boa_token_id": "<|audio>", "eoa_token_index": "<audio|>", "audio_token_id": "<|audio|>",
}  # fmt: skip
GEMMA_TOKENS = 340
GEMMA_OPTIONS = ExportOptions(max_seq_len=160, prefill_chunk=16, verify_len=5, snapshot_slots=2, image_tokens=(6, 20))
GEMMA_LIMITS = {"input_min": -2.0, "input_max": 2.5, "output_min": -3.0, "output_max": 3.5}


def save_gemma4(folder: Path, seed: int = 0, *, large: bool = True, **text_changes: Any) -> None:
    """Write a Gemma 4 folder: text, pictures and sounds in one config, the processor's options, and tokens for pictures.

    large: with the parts of Gemma 4 26B-A4B, where the rows of a picture see each other and embeddings are standardized;
    otherwise with those of E2B, whose layers read one more embedding of each token, and whose encoder clips.
    """
    text = {
        **VARIANTS["gemma4_text"][int(large)],
        "vocab_size": GEMMA_TOKENS,
        "eos_token_id": GEMMA_SPECIAL.index("<turn|>"),
        "use_bidirectional_attention": "vision" if large else None,
        **({} if large else {"vocab_size_per_layer_input": GEMMA_TOKENS, "sliding_window": 23}),
        **text_changes,
    }
    ids = {name: GEMMA_SPECIAL.index(token) for name, token in GEMMA_NAMES.items()}
    config = AutoConfig.for_model(
        "gemma4",
        text_config={"model_type": "gemma4_text", **text},
        vision_config={**PUBLISHED["gemma4"]["vision"], "standardize": large, "use_clipped_linears": not large},
        audio_config=None if large else PUBLISHED["gemma4"]["audio"],
        **ids,
    )
    model = random_whole(config, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        own = name.rpartition(".")[2]
        if own in GEMMA_LIMITS:
            buffer.fill_(GEMMA_LIMITS[own])
        elif own in ("std_bias", "std_scale"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) + (own == "std_scale"))
    lively(model, seed).save_pretrained(folder)
    save_gemma4_files(folder, {"processor_class": "Gemma4Processor", "image_processor": PUBLISHED["gemma4"]["pictures"]})


def save_gemma4_files(folder: Path, processor: dict[str, Any]) -> None:
    """Write a Gemma 4 model's processor, tokenizer and chat template."""
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_json(folder / "processor_config.json", processor)
    save_byte_tokenizer(folder, GEMMA_SPECIAL, GEMMA_TOKENS)
    write_json(folder / "tokenizer_config.json", PUBLISHED["gemma4"]["tokenizer"])
    (folder / "chat_template.jinja").write_text((CHAT_TEMPLATES / "gemma4.jinja").read_text())


# Gemma 4 12B


def save_gemma4_unified(folder: Path, seed: int = 0, **text_changes: Any) -> None:
    """Write a folder in the form of Gemma 4 12B, whose pictures and sounds have no encoder, only a projection."""
    text = {
        **VARIANTS["gemma4_unified_text"][0],
        "vocab_size": GEMMA_TOKENS,
        "eos_token_id": GEMMA_SPECIAL.index("<turn|>"),
        "use_bidirectional_attention": "vision",
        **text_changes,
    }
    config = AutoConfig.for_model(
        "gemma4_unified",
        text_config={"model_type": "gemma4_unified_text", **text},
        vision_config=PUBLISHED["gemma4_unified"]["vision"],
        audio_config=PUBLISHED["gemma4_unified"]["audio"],
        **{name: GEMMA_SPECIAL.index(token) for name, token in GEMMA_NAMES.items()},
    )
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    processor = {**PUBLISHED["gemma4"]["pictures"], "image_processor_type": "Gemma4UnifiedImageProcessor"}
    save_gemma4_files(folder, {"processor_class": "Gemma4UnifiedProcessor", "image_processor": processor})


# GLM5-Next

GLM_SPECIAL = [
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    *("<think>", "</think>", "<|image|>", "<|video|>"),
]
GLM_NAMES = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}
GLM_TOKENS = 340
GLM_FILMS = {
    **PUBLISHED["glm5_next"]["pictures"],
    "video_processor_type": "Glm5NextVideoProcessor",
    "max_image_tokens": 48,
    "fps": 2,
}
GLM_OPTIONS = replace(QWEN_OPTIONS, mtp=False)
GLM_SIZES = {"linear_head_dim": 16, "q_lora_rank": 32, "kv_lora_rank": 24, "v_head_dim": 16, "num_hidden_layers": 2}
"""Sizes that groups of 8 divide."""
GLM_LAYERS = 45
"""Layers of GLM-5.3-Flash: the weights of the layer after them are those of its multi-token prediction."""


def save_glm5_next(folder: Path, seed: int = 0, **text_changes: Any) -> None:
    """Write a GLM5-Next folder with the fields, names and files of GLM-5.3-Flash, scaled down."""
    sizes, layers = VARIANTS["glm5_next_text"][0], ("layer_types", "indexer_types", "mlp_layer_types")
    text = {
        **sizes,
        **{name: sizes[name][:2] for name in layers},
        **GLM_SIZES,
        "vocab_size": GLM_TOKENS,
        "eos_token_id": [GLM_SPECIAL.index("<|endoftext|>")],
        **text_changes,
    }
    config = AutoConfig.for_model(
        "glm5_next",
        text_config={"model_type": "glm5_next_text", **text},
        vision_config={**PUBLISHED["glm5_next"]["vision"], "out_hidden_size": sizes["hidden_size"]},
        **{name: GLM_SPECIAL.index(token) for name, token in GLM_NAMES.items()},
    )
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    path = folder / "model.safetensors"
    prediction = {f"model.language_model.layers.{GLM_LAYERS}.{name}.weight": torch.ones(3) for name in ("enorm", "hnorm")}
    save_file(load_file(path) | prediction, path, metadata={"format": "pt"})
    content = json.loads((folder / "config.json").read_text())
    linear = {
        "head_dim": content["text_config"].pop("linear_head_dim"),
        "num_heads": content["text_config"].pop("linear_num_heads"),
        "short_conv_kernel_size": content["text_config"].pop("linear_conv_kernel_dim"),
        "gate_lower_bound": content["text_config"].pop("linear_lower_bound"),
    }
    older = {"indexed_attention": "deepseek_sparse_attention"}
    kinds = [older.get(kind, kind) for kind in content["text_config"]["layer_types"]]
    content["text_config"] |= {"layer_types": kinds, "linear_attn_config": linear, "num_nextn_predict_layers": 1}
    write_json(folder / "config.json", content)
    ends = [GLM_SPECIAL.index(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    write_json(folder / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[0]})
    processors = {"image_processor": PUBLISHED["glm5_next"]["pictures"], "video_processor": GLM_FILMS}
    write_json(folder / "processor_config.json", {"processor_class": "Glm5NextProcessor", **processors})
    save_byte_tokenizer(folder, GLM_SPECIAL, GLM_TOKENS)
    ends_and_pads = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **ends_and_pads})
    (folder / "chat_template.jinja").write_text((CHAT_TEMPLATES / "glm5_next.jinja").read_text())


# Nemotron-H Omni

OMNI_SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>", "<img>", "</img>", "<so_embedding>", "<video>"]
OMNI_TOKENS = 340
OMNI_OLDER_NAMES = {
    "text_config": "llm_config",
    "audio_config": "sound_config",
    "image_token_id": "img_context_token_id",
    "video_token_id": "video_context_token_id",
    "audio_token_id": "sound_context_token_id",
    "vision_hidden_size": "vit_hidden_size",
}
"""Names of fields in the published config.json, which transformers has renamed."""
OMNI_CODE: dict[str, Any] = {
    "model_type": "NemotronH_Nano_Omni_Reasoning_V3",
    "architectures": ["NemotronH_Nano_Omni_Reasoning_V3"],
    "auto_map": {"AutoConfig": "configuration.NemotronH_Nano_Omni_Reasoning_V3_Config"},
}
"""Fields of the published config.json that name the checkpoint's own code."""
OMNI_OPTIONS = replace(QWEN_OPTIONS, mtp=False)


def save_nemotron_h_omni(folder: Path, seed: int = 0, *, final_norm: bool = False) -> None:
    """Write a Nemotron-H Omni folder: text, pictures and sounds in one config, and the processor's options.

    final_norm: the language model has layers of multi-token prediction, and so pictures have a norm that is not stored.
    """
    text = {**VARIANTS["nemotron_h"][0], "vocab_size": OMNI_TOKENS, "eos_token_id": OMNI_SPECIAL.index("<|im_end|>")}
    config = AutoConfig.for_model(
        "nemotron_h_omni",
        text_config={"model_type": "nemotron_h", "num_nextn_predict_layers": int(final_norm), **text},
        vision_config=PUBLISHED["nemotron_h_omni"]["vision"],
        audio_config=PUBLISHED["nemotron_h_omni"]["audio"],
        vision_hidden_size=PUBLISHED["nemotron_h_omni"]["vision"]["hidden_size"],
        projector_hidden_size=56,
        image_token_id=OMNI_SPECIAL.index("<image>"),
        video_token_id=OMNI_SPECIAL.index("<video>"),
        audio_token_id=OMNI_SPECIAL.index("<so_embedding>"),
    )
    lively(random_whole(config, seed), seed).save_pretrained(folder)
    path = folder / "model.safetensors"
    unstored = ("layer_scale", "vision_final_layernorm")
    stored = {name: each for name, each in load_file(path).items() if not any(part in name for part in unstored)}
    save_file(stored, path, metadata={"format": "pt"})
    content = json.loads((folder / "config.json").read_text())
    older = {OMNI_OLDER_NAMES.get(name, name): value for name, value in content.items()}
    write_json(folder / "config.json", older | OMNI_CODE)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_json(folder / "preprocessor_config.json", PUBLISHED["nemotron_h_omni"]["pictures"])
    save_byte_tokenizer(folder, OMNI_SPECIAL, OMNI_TOKENS)
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<unk>"},
    )
    (folder / "chat_template.jinja").write_text((CHAT_TEMPLATES / "nemotron_h_omni.jinja").read_text())
