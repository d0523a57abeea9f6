"""Block drafters by their published definition, everything from the start each time, and checkpoints of them as published.

Written from z-lab/dflash ``dflash/model.py`` and mlx-vlm ``speculative/drafters/dspark``: tensors have the checkpoint's own
names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

SIZES = {
    "attention_bias": False, "head_dim": 10, "hidden_act": "silu", "intermediate_size": 39, "max_position_embeddings": 4096,
    "model_type": "qwen3", "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "sliding_window": 5,
}  # fmt: skip


def dflash_config(target: Any, layers: list[str], ids: list[int], **changes: Any) -> dict[str, Any]:
    """A config.json of DFlash for a target's config; layers are those of ``layer_types``."""
    own = {
        "architectures": ["DFlashDraftModel"],
        "block_size": 6,
        "dflash_config": {"mask_token_id": target.vocab_size - 3, "target_layer_ids": ids},
        "hidden_size": target.hidden_size,
        "layer_types": layers,
        "num_hidden_layers": len(layers),
        "num_target_layers": target.num_hidden_layers,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        "vocab_size": target.vocab_size,
    }
    return {**SIZES, **own, **changes}


def dflash2_config(target: Any, layers: list[str], ids: list[int], **changes: Any) -> dict[str, Any]:
    """The same of DFlash 2, as its public fixture has it: everything of its own in ``dflash_config``."""
    base = dflash_config(target, layers, ids, architectures=["DFlash2DraftModel"], is_causal=False)
    nested = {
        **base["dflash_config"],
        "block_size": base.pop("block_size"),
        "conv_group_size": 8,
        "conv_kernel_size": 3,
        "final_logit_softcapping": 7.0,
        "output_multiplier": 0.7,
        "selector_rank": 5,
        "selector_top_k": 4,
    }
    return {**base, "dflash_config": nested, **changes}


def dspark_config(target: Any, layers: list[str], ids: list[int], **changes: Any) -> dict[str, Any]:
    """The same of DSpark, as LFM2's has it: interleaved rotary embeddings, a block size that counts guesses alone."""
    base = dflash_config(target, layers, ids, architectures=["Lfm2DSparkDraftModel"], block_size=5)
    own = {"markov_rank": 7, "enable_confidence_head": True, "confidence_head_with_markov": True, "rope_is_neox_style": False}
    return {**base, **own, **changes}


def flat(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **config.get("dflash_config", {})}


def random_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of a checkpoint with that config, by its name there."""
    c, generator = flat(config), torch.Generator().manual_seed(seed)
    H, D, V = c["hidden_size"], c["head_dim"], c["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (H, H * len(c["target_layer_ids"])), "hidden_norm.weight": (H,)}
    shapes["norm.weight"] = (H,)
    for layer in range(c["num_hidden_layers"]):
        at = f"layers.{layer}."
        shapes |= layer_shapes(c, at, H)
        shapes[f"{at}self_attn.q_norm.weight"] = shapes[f"{at}self_attn.k_norm.weight"] = (D,)
        if "conv_kernel_size" in c:
            K = c["conv_kernel_size"]
            for conv in ("attention_conv", "mlp_conv"):
                shapes[f"{at}{conv}.base_kernel"] = (2, K, H)
                shapes[f"{at}{conv}.kernel_projection.weight"] = (2 * K * (H // c["conv_group_size"]), H)
    if "selector_rank" in c:
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{name}"] = (V, c["selector_rank"])
        shapes["candidate_selector.hidden_projection.weight"] = (c["selector_rank"], H)
    if "markov_rank" in c:
        shapes["markov_head.markov_w1.weight"] = shapes["markov_head.markov_w2.weight"] = (V, c["markov_rank"])
        if c["enable_confidence_head"]:
            width = H + (c["markov_rank"] if c["confidence_head_with_markov"] else 0)
            shapes["confidence_head.proj.weight"], shapes["confidence_head.proj.bias"] = (1, width), (1,)
    return random_weights(shapes, generator)


def layer_shapes(c: dict[str, Any], at: str, read: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's weights by name; read: the numbers that its queries, keys and values are made of."""
    H, wide, D = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * D, c["num_key_value_heads"] * D
    return {
        f"{at}input_layernorm.weight": (H,), f"{at}post_attention_layernorm.weight": (H,),
        f"{at}self_attn.q_proj.weight": (queries, read), f"{at}self_attn.k_proj.weight": (keys, read),
        f"{at}self_attn.v_proj.weight": (keys, read), f"{at}self_attn.o_proj.weight": (H, queries),
        f"{at}mlp.gate_proj.weight": (wide, H), f"{at}mlp.up_proj.weight": (wide, H), f"{at}mlp.down_proj.weight": (H, wide),
    }  # fmt: skip


def random_weights(shapes: dict[str, tuple[int, ...]], generator: torch.Generator) -> dict[str, Tensor]:
    """Return norms around 1, and matrices large enough to show mistakes."""
    found = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        found[name] = 1 + 0.1 * values if len(shape) == 1 and "bias" not in name else values * 1.5 / math.sqrt(shape[-1])
    return found


def save_drafter(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write the folder of a drafter's checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    return folder


def turn(x: Tensor, positions: Tensor, theta: float, neighbours: bool = False) -> Tensor:
    """x [T, heads, D] as complex numbers, of neighbours or of the halves, times e^(i angle)."""
    D = x.shape[-1]
    angles = positions[:, None] * theta ** (-torch.arange(0, D, 2) / D)
    real, imaginary = (x[..., ::2], x[..., 1::2]) if neighbours else x.chunk(2, -1)
    numbers = torch.complex(real.contiguous(), imaginary.contiguous())
    parts = torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles)[:, None])
    return parts.flatten(-2) if neighbours else torch.cat([parts[..., 0], parts[..., 1]], -1)


@dataclass
class Twin:
    """A drafter over a target's ``embedding`` and ``head`` [V, H]."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    embedding: Tensor
    head: Tensor
    allowed: Tensor | None = None  # tokens that it may propose

    @property
    def c(self) -> dict[str, Any]:
        return flat(self.config)

    @property
    def is_dspark(self) -> bool:
        return "markov_rank" in self.c

    def taps(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        """[n, F] of transformers' ``output_hidden_states`` [1, n, H] each."""
        return torch.cat([hidden_states[index + 1][0] for index in self.c["target_layer_ids"]], dim=-1)

    @torch.no_grad()
    def guess(
        self, taps: Tensor, last: int, count: int, drawn: Sequence[int] | None = None
    ) -> tuple[list[int], Tensor, Tensor]:
        """``count`` guesses after taps [n, F] of what is committed and the token after it: tokens, scores and confidences.

        drawn: what was chosen instead of the best token of each position, whose scores follow from it.
        """
        rows = count if self.is_dspark else count + 1
        tokens = torch.tensor([last] + [self.c["mask_token_id"]] * (rows - 1))
        hidden = self.run(taps, self.embedding[tokens])[rows - count :]
        logits = hidden @ self.head.T * self.c.get("output_multiplier", 1.0)
        if (cap := self.c.get("final_logit_softcapping")) is not None:
            logits = torch.tanh(logits / cap) * cap
        if self.allowed is not None:
            logits = torch.full_like(logits, -math.inf).index_copy(1, self.allowed, logits[:, self.allowed])
        return self.walk(hidden, logits, last, drawn)

    def walk(self, hidden: Tensor, logits: Tensor, last: int, drawn: Sequence[int] | None) -> tuple[list[int], Tensor, Tensor]:
        w, found, scores, chances = self.tensors, [last], [], []
        for i, (h, row) in enumerate(zip(hidden, logits, strict=True)):
            previous, score = found[-1], row
            if self.is_dspark:
                embedded = w["markov_head.markov_w1.weight"][previous]
                score = row + w["markov_head.markov_w2.weight"] @ embedded
                if self.c["enable_confidence_head"]:
                    seen = torch.cat([h, embedded]) if self.c["confidence_head_with_markov"] else h
                    chances.append((w["confidence_head.proj.weight"] @ seen + w["confidence_head.proj.bias"]).sigmoid()[0])
            if "selector_rank" in self.c:
                wanted = w["candidate_selector.predecessor_codebook"][previous]
                wanted = wanted * (w["candidate_selector.hidden_projection.weight"] @ h)
                ids = row.topk(self.c["selector_top_k"]).indices
                score = torch.full_like(row, -math.inf)
                score[ids] = row[ids] + w["candidate_selector.successor_codebook"][ids] @ wanted
            scores.append(score)
            if not chances or len(chances) < len(scores):
                chances.append(score.softmax(-1).max())
            found.append(int(score.argmax()) if drawn is None else drawn[i])
        return found[1:], torch.stack(scores), torch.stack(chances)

    def run(self, taps: Tensor, x: Tensor) -> Tensor:
        """Hidden states of a block whose embedded tokens are x [B, H]."""
        context = self.norm("hidden_norm", taps @ self.tensors["fc.weight"].T)
        for layer in range(self.c["num_hidden_layers"]):
            x = self.layer(f"layers.{layer}.", layer, context, x)
        return self.norm("norm", x)

    def layer(self, at: str, layer: int, context: Tensor, x: Tensor) -> Tensor:
        h, post = self.prepare(f"{at}attention_conv", self.norm(f"{at}input_layernorm", x))
        h = self.attend(f"{at}self_attn.", layer, context, h)
        x = x + self.convolve(f"{at}attention_conv", h, post, 1)
        h, post = self.prepare(f"{at}mlp_conv", self.norm(f"{at}post_attention_layernorm", x))
        w = self.tensors
        h = F.silu(h @ w[f"{at}mlp.gate_proj.weight"].T) * (h @ w[f"{at}mlp.up_proj.weight"].T)
        return x + self.convolve(f"{at}mlp_conv", h @ w[f"{at}mlp.down_proj.weight"].T, post, 1)

    def attend(self, at: str, layer: int, context: Tensor, h: Tensor) -> Tensor:
        c, w, n, B = self.c, self.tensors, len(context), len(h)
        G, repeats = c["num_key_value_heads"], c["num_attention_heads"] // c["num_key_value_heads"]
        positions = torch.arange(n + B)

        def project(x: Tensor, name: str) -> Tensor:
            return (x @ w[f"{at}{name}.weight"].T).unflatten(-1, (-1, c["head_dim"]))

        both = torch.cat([context, h])
        rope = c["rope_parameters"]["rope_theta"], not c.get("rope_is_neox_style", True)
        q = turn(self.norm(f"{at}q_norm", project(h, "q_proj")), positions[n:], *rope)
        k = turn(self.norm(f"{at}k_norm", project(both, "k_proj")), positions, *rope).repeat_interleave(repeats, 1)
        v = project(both, "v_proj").repeat_interleave(repeats, 1)
        assert k.shape[1] == G * repeats
        distance = positions[n:, None] - positions
        sliding, causal = c["layer_types"][layer] == "sliding_attention", c.get("is_causal")
        causal = (sliding and not self.is_dspark) if causal is None else causal
        seen = torch.ones_like(distance, dtype=torch.bool)
        seen &= (distance.abs() < c["sliding_window"]) if sliding else seen
        seen &= (distance >= 0) if causal else seen
        scores = torch.einsum("qhd,khd->hqk", q, k) * c["head_dim"] ** -0.5
        out = torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1), v)
        return out.flatten(1) @ w[f"{at}o_proj.weight"].T

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.c["rms_norm_eps"])

    def prepare(self, name: str, h: Tensor) -> tuple[Tensor, Tensor | None]:
        if "conv_kernel_size" not in self.c:
            return h, None
        change = (h @ self.tensors[f"{name}.kernel_projection.weight"].T).unflatten(-1, (2, self.c["conv_kernel_size"], -1))
        return self.convolve(name, h, change[:, 0], 0), change[:, 1]

    def convolve(self, name: str, x: Tensor, change: Tensor | None, side: int) -> Tensor:
        if change is None:
            return x
        base, group = self.tensors[f"{name}.base_kernel"][side], self.c["conv_group_size"]
        out = torch.zeros_like(x)
        for t in range(len(x)):
            for lag in range(min(self.c["conv_kernel_size"], t + 1)):
                out[t] += (base[lag] + change[t, lag].repeat_interleave(group)) * x[t - lag]
        return out


def eagle_config(target: Any, draft_vocab: int, **changes: Any) -> dict[str, Any]:
    """A config.json of EAGLE-3 for a target's config, as its authors publish it; hidden states are those after a layer."""
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": draft_vocab,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1], "use_aux_hidden_state": True},
        "hidden_size": target.hidden_size,
        "model_type": "llama",
        "num_hidden_layers": 1,
        "rope_theta": 1000.0,
        "vocab_size": target.vocab_size,
    }
    return {**SIZES, **own, **changes}


def eagle_tensors(config: dict[str, Any], taps: int, own_embedding: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of a checkpoint with that config, by its name there."""
    generator = torch.Generator().manual_seed(seed)
    H, V, few = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, taps * config.get("target_hidden_size", H)),
        "norm.weight": (H,),
        "lm_head.weight": (few, H),
        "midlayer.hidden_norm.weight": (H,),
        **layer_shapes(config, "midlayer.", 2 * H),
    }
    if own_embedding:
        shapes["embed_tokens.weight"] = (V, H)
    found = random_weights(shapes, generator)
    if few < V:
        ids = torch.randperm(V, generator=generator)[:few].sort().values
        found["d2t"], found["t2d"] = ids - torch.arange(few), torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True)
    return found


@dataclass
class EagleTwin:
    """EAGLE-3 by vLLM's ``llama_eagle3.py``, over a target's ``embedding`` [V, H]."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    embedding: Tensor
    reads: tuple[int, ...] = (1, 2)

    def taps(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([hidden_states[index][0] for index in self.reads], dim=-1)

    @torch.no_grad()
    def guess(self, taps: Tensor, following: list[int], count: int) -> tuple[list[int], Tensor]:
        """``count`` guesses after taps [n, F] and the token after each; tokens and chances."""
        w, h, tokens, found, chances = self.tensors, taps @ self.tensors["fc.weight"].T, list(following), [], []
        ids = torch.arange(self.config["draft_vocab_size"]) + w.get("d2t", torch.tensor(0))
        for _ in range(count):
            g = self.layer(w.get("embed_tokens.weight", self.embedding)[tokens], h)[-1:]
            scores = (self.norm("norm", g) @ w["lm_head.weight"].T)[0]
            chances.append(scores.softmax(-1).max())
            found.append(int(ids[scores.argmax()]))
            tokens, h = [*tokens, found[-1]], torch.cat([h, g])
        return found, torch.stack(chances)

    def layer(self, embedded: Tensor, h: Tensor) -> Tensor:
        c, w, at, T = self.config, self.tensors, "midlayer.", len(h)
        normed = self.norm(f"{at}hidden_norm", h)
        both = torch.cat([self.norm(f"{at}input_layernorm", embedded), normed], -1)
        repeats, positions = c["num_attention_heads"] // c["num_key_value_heads"], torch.arange(T)

        def project(name: str) -> Tensor:
            return (both @ w[f"{at}self_attn.{name}.weight"].T).unflatten(-1, (-1, c["head_dim"]))

        q, k = (turn(project(name), positions, c["rope_theta"]) for name in ("q_proj", "k_proj"))
        k, v = k.repeat_interleave(repeats, 1), project("v_proj").repeat_interleave(repeats, 1)
        out = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True)[0].transpose(0, 1)
        h = (normed if c.get("norm_before_residual") else h) + out.flatten(1) @ w[f"{at}self_attn.o_proj.weight"].T
        x = self.norm(f"{at}post_attention_layernorm", h)
        x = F.silu(x @ w[f"{at}mlp.gate_proj.weight"].T) * (x @ w[f"{at}mlp.up_proj.weight"].T)
        return h + x @ w[f"{at}mlp.down_proj.weight"].T

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])
