"""Time and memory of a picture: ours, in float32 and as exports round by default, beside transformers and llama.cpp.

llama.cpp's mtmd takes part for LFM2.5-VL and Qwen3.5 if its environment is there (scripts/bench --install-peers), with weights
of the same bits; it only encodes. The encoders have the sizes of published models and random weights; their text models have
few layers. transformers reads Qwen3.5's rows at positions of a text, and Gemma 3's as if they did not see each other, which
takes as long. Every engine computes in a process of its own on one thread, and encodes and reads the same picture between 16
tokens. Ratios are of one run.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from campaigns import campaign
from campaigns.bench import peers
from hybridge.runtime.artifact.options import ExportOptions

EAGER, ROUNDED, PLAIN = "transformers", "8 bits", "float32"
PEERS: Mapping[str, tuple[str, str]] = {"llama.cpp F32": ("F32", PLAIN), "llama.cpp Q8_0": ("Q8_0", ROUNDED)}
"""Kinds of llama.cpp's weights, and the engine of ours with as many bits."""
PEERS_FOLDER = Path.home() / ".cache" / "hybridge-bench"
"""Where scripts/bench keeps llama.cpp."""
TEXT = "text.gguf"
BEFORE, BEHIND = list(range(1, 9)), list(range(9, 17))
"""Tokens around the picture."""
LFM2_TEXT: dict[str, Any] = {
    "model_type": "lfm2", "vocab_size": 65_536, "hidden_size": 1024, "intermediate_size": 6656, "num_hidden_layers": 3,
    "num_attention_heads": 16, "num_key_value_heads": 8, "layer_types": ["conv", "conv", "full_attention"],
}  # fmt: skip
QWEN_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text", "vocab_size": 65_536, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 1e7,
        "rope_type": "default",
    },
}  # fmt: skip

GEMMA3_TEXT: dict[str, Any] = {
    "model_type": "gemma3_text", "vocab_size": 65_536, "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
NEMOTRON_TEXT: dict[str, Any] = {
    "model_type": "nemotron_h", "vocab_size": 65_536, "layers_block_type": ["linear_attention", "full_attention"],
}  # fmt: skip


def siglip(hidden: int, layers: int, heads: int, intermediate: int) -> dict[str, Any]:
    """Return the config of a vision tower of LFM2-VL."""
    return {
        "model_type": "siglip2_vision_model", "hidden_size": hidden, "num_hidden_layers": layers, "patch_size": 16,
        "num_attention_heads": heads, "intermediate_size": intermediate, "num_patches": 256, "vision_use_head": False,
    }  # fmt: skip


@dataclass(frozen=True)
class Sized:
    """The sizes of a model. kind: its ``model_type``; config: what differs from defaults; side: of the picture, in pixels."""

    kind: str
    config: Mapping[str, Any]
    side: int = 448


MODELS: Mapping[str, Sized] = {
    "LFM2.5-VL-450M": Sized("lfm2_vl", {"text_config": LFM2_TEXT, "vision_config": siglip(768, 12, 12, 3072)}),
    "LFM2.5-VL-1.6B": Sized("lfm2_vl", {"text_config": LFM2_TEXT, "vision_config": siglip(1152, 27, 16, 4304)}),
    "Qwen3.5-0.8B": Sized(
        "qwen3_5",
        {
            "text_config": QWEN_TEXT,
            "vision_config": {
                "model_type": "qwen3_5", "depth": 12, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12,
                "num_position_embeddings": 2304, "out_hidden_size": 1024, "patch_size": 16, "spatial_merge_size": 2,
                "temporal_patch_size": 2, "deepstack_visual_indexes": [],
            },
            "video_token_id": 101, "vision_start_token_id": 102, "vision_end_token_id": 103,
        },
    ),
    "Gemma-3-4B": Sized(
        "gemma3",
        {
            "text_config": GEMMA3_TEXT,
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16,
                "intermediate_size": 4304, "image_size": 896, "patch_size": 14, "vision_use_head": False,
            },
            "mm_tokens_per_image": 256, "boi_token_index": 102, "eoi_token_index": 103,
        },
        side=896,
    ),
    "Nemotron-H-Omni": Sized(
        "nemotron_h_omni",
        {
            "text_config": NEMOTRON_TEXT, "vision_config": {"model_type": "radio", "video_temporal_patch_size": 2},
            "video_token_id": 101, "audio_token_id": 102,
        },
        side=512,  # which its processor makes of smaller ones
    ),
}  # fmt: skip
PROCESSORS: Mapping[str, dict[str, Any]] = {
    "lfm2_vl": {"do_image_splitting": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    "qwen3_5": {
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    },
    "gemma3": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 896, "width": 896}},
    "nemotron_h_omni": {},
}
ENCODED_BY_PEERS = ("lfm2_vl", "qwen3_5")
"""Kinds whose encoder ``campaigns.bench.mmproj_file`` writes for llama.cpp."""


@dataclass(frozen=True)
class Measured:
    """Seconds to encode the picture, seconds to read it with the tokens around it once it is encoded, peak bytes of memory.

    read: NaN for an engine that only encodes.
    """

    encode: float
    read: float
    memory: int

    @property
    def first_token(self) -> float:
        """Return the seconds until the first token's logits."""
        return self.encode + self.read


def main() -> int:
    """Print a line for each engine and model."""
    parser = campaign.parser("picture-speed", __doc__)
    parser.add_argument("--model", choices=MODELS, action="append", help="a model; all without this")
    parser.add_argument("--work", type=Path, help="a folder in which checkpoints and artifacts stay for the next run")
    parser.add_argument("--rounds", type=int, default=3, help="of each engine; the median counts (default: 3)")
    parser.add_argument("--prepare", action="store_true", help="only make what --work has not yet")
    parser.add_argument("--measure", nargs=3, metavar=("ENGINE", "FOLDER", "SIDE"), help="measure one, and print JSON")
    options = parser.parse_args()
    if options.measure:
        engine, folder, side = options.measure
        print(json.dumps(vars(measure(engine, Path(folder), int(side), options.rounds))))
        return 0
    with tempfile.TemporaryDirectory(prefix="hybridge-picture-speed-") as scratch:
        work = options.work or Path(scratch)
        for name in options.model or MODELS:
            folders = prepared(name, work / name)
            if not options.prepare:
                side, rounds = MODELS[name].side, options.rounds
                report(name, {engine: _in_a_process(engine, folder, side, rounds) for engine, folder in folders.items()})
    return 0


def report(name: str, found: Mapping[str, Measured]) -> None:
    """Print a line for each engine, with the eager model's times and memory over its own, and llama.cpp's times over ours."""
    eager = found[EAGER]
    for engine, each in found.items():
        first = f"first token {each.first_token:6.2f} s ({eager.first_token / each.first_token:.2f} x)"
        print(
            f"{name:15} {engine:14} encode {each.encode:6.2f} s ({eager.encode / each.encode:.2f} x)   "
            f"{first if not math.isnan(each.read) else 'encodes only':28}   "
            f"peak {each.memory / 1e6:6.0f} MB ({eager.memory / each.memory:.2f} x)",
            flush=True,
        )
    for engine, (_, same) in PEERS.items():
        if engine in found:
            print(f"{name:15} {same:14} encodes at {found[engine].encode / found[same].encode:.2f} x {engine}", flush=True)


def prepared(name: str, folder: Path) -> dict[str, Path]:
    """Return what each engine opens; what is there already is not made again."""
    sized = MODELS[name]
    checkpoint, plain, rounded = (folder / part for part in ("checkpoint", "float32", "rounded"))
    if not checkpoint.exists():
        with campaign.whole(checkpoint) as unfinished:
            save(sized, unfinished)
    for out, bits in ((plain, "none"), (rounded, "8da4w")):
        if not out.exists():
            from hybridge.export.api import export_model

            export_model(checkpoint, out, ExportOptions(max_seq_len=1024, prefill_chunk=128, quantize=bits))  # type: ignore[arg-type]
    return {EAGER: checkpoint, PLAIN: plain, ROUNDED: rounded} | _peers(sized.kind, checkpoint, folder)


def _peers(kind: str, checkpoint: Path, folder: Path) -> dict[str, Path]:
    """Return the files of llama.cpp's encoders; none, which is said, without its environment."""
    if kind not in ENCODED_BY_PEERS:
        return {}
    if not peers.installed(PEERS_FOLDER):
        print(f"llama.cpp is {peers.how()}")
        return {}
    files = {engine: folder / f"mmproj-{bits}.gguf" for engine, (bits, _) in PEERS.items()}
    for engine, file in files.items():
        if not file.exists():
            arguments = [str(checkpoint), str(file), PEERS[engine][0], str(folder / TEXT)]
            subprocess.run([str(peers.python_of(PEERS_FOLDER)), "-m", "campaigns.bench.mmproj_file", *arguments], check=True)
    return files


def save(sized: Sized, folder: Path) -> None:
    """Write a checkpoint of random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(sized.kind, **sized.config, image_token_id=100)
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[sized.kind]))
    (folder / "processor_config.json").write_text(json.dumps({"use_image_special_tokens": False}))


def _in_a_process(engine: str, folder: Path, side: int, rounds: int) -> Measured:
    if engine in PEERS:
        arguments = [str(folder), str(folder.with_name(TEXT)), str(side), str(rounds)]
        command = [str(peers.python_of(PEERS_FOLDER)), "-m", "campaigns.bench.mtmd_engine", *arguments]
    else:
        measuring = ["--measure", engine, str(folder), str(side), "--rounds", str(rounds)]
        command = [sys.executable, "-m", "campaigns.picture_speed", *measuring]
    log = subprocess.DEVNULL if engine in PEERS else None  # llama.cpp says much
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    return Measured(**{"read": math.nan} | json.loads(done.stdout.splitlines()[-1]))


def measure(engine: str, folder: Path, side: int, rounds: int) -> Measured:
    """Measure one engine on one thread of one core: encoding takes what a new picture takes longer than one that is encoded."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    read = (of_transformers if engine == EAGER else of_hybridge)(folder)
    first, again = list[float](), list[float]()
    for number in range(1 + rounds):  # the first one is not counted
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        for seconds in (first, again):
            began = time.perf_counter()
            read(pixels)
            seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Measured(median(np.subtract(first, again)[1:].tolist()), median(again[1:]), peak)


Read = Callable[[np.ndarray[Any, Any]], object]
"""Reads the text with a picture; one with the pixels of the call before is not encoded again."""


def of_transformers(folder: Path) -> Read:
    """Read by transformers' model in float32, with the attention that it chooses."""
    import torch
    from transformers import AutoModelForImageTextToText

    from hybridge.export.model.vision import VISION, read_processor

    torch.set_num_threads(1)
    whole = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    family = VISION[whole.config.model_type]
    processor = read_processor(folder, family)
    encoded: tuple[object, torch.Tensor] = (None, torch.empty(0))

    @torch.inference_mode()
    def read(pixels: np.ndarray[Any, Any]) -> None:
        nonlocal encoded
        inputs = family.inputs(whole.config, processor, [torch.from_numpy(pixels.copy())])
        if encoded[0] is not pixels:
            encoded = pixels, torch.cat(list(whole.get_image_features(**inputs).pooler_output))
        before, behind = (whole.get_input_embeddings()(torch.tensor([tokens])) for tokens in (BEFORE, BEHIND))
        embeddings = torch.cat([before, encoded[1][None], behind], 1)
        whole(inputs_embeds=embeddings, use_cache=True, logits_to_keep=1)

    return read


def of_hybridge(folder: Path) -> Read:
    """Read by an artifact's session."""
    from hybridge.runtime import Session
    from hybridge.runtime.binding.library import set_threads
    from hybridge.runtime.binding.pictures import Picture

    set_threads(1)
    session = Session.load(folder)
    opened: tuple[object, Picture | None] = (None, None)

    def read(pixels: np.ndarray[Any, Any]) -> None:
        nonlocal opened
        if opened[0] is not pixels:
            opened = pixels, Picture(session.model, pixels, prepared=True)
        assert opened[1] is not None
        session.reset()
        session.prefill([*BEFORE, *opened[1].ids, *BEHIND])

    return read


if __name__ == "__main__":
    sys.exit(main())
