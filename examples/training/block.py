"""Train a block drafter: a small model that guesses a block of the target's next bytes in one pass.

DFlash or DSpark as published (docs/speculation.md), by the very modules that an export makes of such a checkpoint. A window
trains many blocks at once: at every STRIDE bytes one begins, with the byte there and masks after it, which sees the context
rows in front of it and itself alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM

from hybridge.export.drafters.block import BlockWeights, load_block_weights, read_block_config
from hybridge.export.drafters.block_layers import BlockDrafterConfig, DrafterLayer, MarkovTail
from hybridge.export.drafters.layers import load_rope
from training import teacher
from training.corpus import PAD
from training.delta import fast_delta_rule
from training.loop import Run, train

ROWS, STRIDE, PEAK = 1, 4, 2e-3
GUESSES = 7
FADE = 5.0
"""A guess i steps ahead counts exp(-i / FADE): one that is wrong makes those after it worthless (DFlash, arXiv:2602.06036)."""
SURE = 0.1
"""Weight of the loss of the confidence."""
SIZES = {
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "mask_token_id": PAD,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": 4,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "target_layer_ids": [1, 2, 3],
    "torch_dtype": "bfloat16",
    "vocab_size": 260,
}
KINDS = {
    "dflash": {"architectures": ["DFlashDraftModel"], "block_size": GUESSES + 1},
    "dspark": {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": GUESSES,
        "confidence_head_with_markov": True,
        "enable_confidence_head": True,
        "markov_rank": 64,
    },
}


def config_of(kind: str) -> dict[str, object]:
    """Return the config.json of one of KINDS."""
    return dict(sorted((SIZES | KINDS[kind]).items()))


def facts(kind: str) -> dict[str, object]:
    """Return what the card says of one of KINDS beside figures."""
    taps = ", ".join(str(index + 1) for index in SIZES["target_layer_ids"])
    shown = {"kind": kind, "layers": SIZES["num_hidden_layers"], "taps": taps, "guesses": GUESSES}
    return shown | {"stride": STRIDE, "fade": FADE}


def build(kind: str, target: Qwen3_5ForCausalLM) -> BlockWeights:
    """Random weights, float32; the last norm is the target's, whose head reads what it gives."""
    config = read_block_config(Path("config.json"), config_of(kind))
    assert config is not None
    weights = BlockWeights(config, SIZES["vocab_size"])
    for matrix in (weight for weight in weights.parameters() if weight.ndim == 2):
        nn.init.normal_(matrix, std=0.02)
    weights.backbone.norm.weight.data.copy_(1 + target.model.norm.weight)  # Qwen3.5 stores what differs from 1
    weights.rope = load_rope(Path(), config)
    return weights


@dataclass(frozen=True)
class Blocks:
    """Blocks in windows of ``length`` committed bytes at most, of which each begins at one of ``starts`` [A]."""

    config: BlockDrafterConfig
    length: int
    starts: Tensor

    @property
    def rows(self) -> int:
        """Return the rows of a block."""
        return GUESSES + self.config.first_guess

    @property
    def positions(self) -> Tensor:
        """Return the places [A * rows] in the window of all rows."""
        return (self.starts[:, None] + torch.arange(self.rows)).flatten()

    @property
    def guessed(self) -> Tensor:
        """Return the places [A, GUESSES] in the window of what is guessed."""
        return self.starts[:, None] + 1 + torch.arange(GUESSES)

    def mask(self) -> Tensor:
        """[1, 1, A * rows, length + A * rows] bool: what each row sees of the context rows and of all blocks' rows."""
        block = torch.arange(len(self.starts)).repeat_interleave(self.rows)
        before = torch.arange(self.length) < self.starts[block][:, None]
        return torch.cat([before, block[:, None] == block], -1)[None, None]


def attend(layer: DrafterLayer, context: Tensor, x: Tensor, blocks: Blocks, weights: BlockWeights) -> Tensor:
    """Run a layer on all blocks' rows x [rows, A * rows of a block, H] after context rows [rows, length, H]."""
    attention, h = layer.self_attn, layer.input_layernorm(x)
    here, there = weights.rope.angles(blocks.positions), weights.rope.angles(torch.arange(blocks.length))
    pairs = zip(attention.rows(context, there), attention.rows(h, here), strict=True)
    keys, values = (torch.cat(pair, 1).transpose(1, 2) for pair in pairs)
    queries = attention.query(h, here).transpose(1, 2)
    out = F.scaled_dot_product_attention(queries, keys, values, blocks.mask(), scale=layer.scale, enable_gqa=True)
    x = x + attention.o_proj(out.transpose(1, 2).flatten(2))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def run_blocks(weights: BlockWeights, target: Qwen3_5ForCausalLM, taps: Tensor, texts: Tensor, blocks: Blocks) -> Tensor:
    """Hidden states [rows, A, GUESSES, H] of the guesses, of taps [rows, length, F] and texts [rows, n] with all starts."""
    backbone, config = weights.backbone, weights.config
    context = backbone.hidden_norm(backbone.fc(taps))
    tokens = torch.full((len(texts), len(blocks.starts), blocks.rows), config.mask_token)
    tokens[:, :, 0] = texts[:, blocks.starts]
    x = target.model.embed_tokens(tokens.flatten(1))
    for layer in backbone.layers:
        x = attend(layer, context, x, blocks, weights)
    hidden: Tensor = backbone.norm(x).unflatten(1, (len(blocks.starts), blocks.rows))
    return hidden[:, :, config.first_guess :]


def tapped(weights: BlockWeights, target: Qwen3_5ForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden states [rows, length, F] that the drafter reads for ids [rows, length], and the target's logits."""
    out = target(input_ids=ids, use_cache=False, output_hidden_states=True)
    return torch.cat([out.hidden_states[tap] for tap in weights.config.taps], -1), out.logits


def loss_of(weights: BlockWeights, target: Qwen3_5ForCausalLM, batch: Tensor) -> Tensor:
    """Distillation loss of all guesses of windows [rows, length + 1], each told the bytes before it, and of their chances."""
    ids = batch[:, :-1]
    with torch.no_grad():
        taps, wanted = tapped(weights, target, ids)
    first = int(torch.randint(1, STRIDE + 1, ()))
    blocks = Blocks(weights.config, ids.shape[1], torch.arange(first, ids.shape[1] - GUESSES, STRIDE))
    hidden = run_blocks(weights, target, taps, ids, blocks)
    scores, before, wanted = target.lm_head(hidden), ids[:, blocks.guessed - 1], wanted[:, blocks.guessed - 1]
    fade = torch.exp(-torch.arange(GUESSES) / FADE)
    if not isinstance(weights.tail, MarkovTail):
        return faded(teacher.distil_each(scores, wanted), fade)
    previous = weights.tail.markov_head.markov_w1(before)
    scores = scores + weights.tail.markov_head.markov_w2(previous)
    right = (scores.argmax(-1) == wanted.argmax(-1)).float()
    sure = weights.tail.confidence_head.proj(torch.cat([hidden, previous], -1)).squeeze(-1)
    doubt = F.binary_cross_entropy_with_logits(sure.float(), right, reduction="none")
    return faded(teacher.distil_each(scores, wanted) + SURE * doubt, fade)


def faded(losses: Tensor, fade: Tensor) -> Tensor:
    """Mean of losses [..., GUESSES] with weights [GUESSES]."""
    return (losses * fade).mean() / fade.mean()


@torch.no_grad()
def draft_tokens(weights: BlockWeights, target: Qwen3_5ForCausalLM, texts: Tensor) -> Tensor:
    """[rows, GUESSES] draft tokens of what follows the texts [rows, length], whose last token has no hidden state yet."""
    last = texts.shape[1] - 1
    taps, _ = tapped(weights, target, texts[:, :-1])
    blocks = Blocks(weights.config, last, torch.tensor([last]))
    scores = target.lm_head(run_blocks(weights, target, taps, texts, blocks)[:, 0])
    if not isinstance(weights.tail, MarkovTail):
        return scores.argmax(-1)
    found = [texts[:, -1]]
    for i in range(GUESSES):
        correction = weights.tail.markov_head.markov_w2(weights.tail.markov_head.markov_w1(found[-1]))
        found.append((scores[:, i] + correction).argmax(-1))
    return torch.stack(found[1:], 1)


def train_drafter(
    kind: str, target: Qwen3_5ForCausalLM, data: Tensor, own: Tensor, minutes: float, check: Callable[[BlockWeights], str]
) -> tuple[BlockWeights, Run]:
    """From random weights, within the budget; ``check`` says now and then how good they are."""
    weights = build(kind, target).train()
    print(f"{kind}: {sum(weight.numel() for weight in weights.parameters()):,} parameters", flush=True)
    batches = teacher.mixed(data, own, ROWS)
    with fast_delta_rule():
        run = train(weights, lambda b: loss_of(weights, target, b), batches, minutes, PEAK, lambda: check(weights))
    return weights, run


def publish(kind: str, weights: BlockWeights, folder: Path) -> None:
    """Write the checkpoint's folder in bfloat16, with the names that such checkpoints have."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(kind), indent=2) + "\n")
    named = {**weights.backbone.state_dict(), **weights.tail.state_dict()}
    tensors = {name: each.detach().bfloat16().contiguous() for name, each in named.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for path in folder.iterdir():
        path.chmod(0o644)


def read(target: Qwen3_5ForCausalLM, folder: Path) -> BlockWeights:
    """Return the folder's rounded weights in float32, as an export reads them, for measuring."""
    path = folder / "config.json"
    config = read_block_config(path, json.loads(path.read_text()))
    assert config is not None
    return load_block_weights(folder, config, target.config.vocab_size, {})
