"""``genai_config.json``: what onnxruntime-genai must know to run the graph.

Source: the model builder of onnxruntime-genai 0.18 (``models/builders/base.py``, ``make_genai_config``), which writes the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.onnx.traced_cache import TracedCache
from hybridge.runtime.artifacts.manifest import ONNX_PROGRAM
from hybridge.runtime.artifacts.options import ExportOptions

GENAI_CONFIG = "genai_config.json"


def write_genai_config(checkpoint: Checkpoint, cache: TracedCache, folder: Path, options: ExportOptions) -> None:
    """Write it into ``folder``. Greedy decoding is its default, as it is ours."""
    content = {"model": _model(checkpoint, cache, options), "search": _search(options)}
    (folder / GENAI_CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _model(checkpoint: Checkpoint, cache: TracedCache, options: ExportOptions) -> dict[str, Any]:
    eos = checkpoint.eos_ids
    return {
        "type": checkpoint.config.model_type,
        "bos_token_id": checkpoint.bos_id if checkpoint.bos_id is not None else 0,
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "pad_token_id": eos[0] if eos else 0,
        "context_length": options.max_seq_len,
        "vocab_size": checkpoint.vocab_size,
        "decoder": _decoder(checkpoint.config, cache),
    }


def _decoder(config: Any, cache: TracedCache) -> dict[str, Any]:
    heads, _, width = next((entry.shape[1:] for entry in cache.states if entry.positional), (1, 1, 1))
    return {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": ONNX_PROGRAM,
        "head_size": width,
        "hidden_size": config.hidden_size,
        "num_attention_heads": getattr(config, "num_attention_heads", heads),
        "num_key_value_heads": heads,
        "num_hidden_layers": config.num_hidden_layers,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }


def _search(options: ExportOptions) -> dict[str, Any]:
    return {
        "do_sample": False,
        "max_length": options.max_seq_len,
        "min_length": 0,
        "num_beams": 1,
        "past_present_share_buffer": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }
