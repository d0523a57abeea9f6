"""Train the multi-token-prediction drafter: one attention layer that reads the target's hidden states.

As in Qwen3-Next and Qwen3.5 checkpoints. At position p, from the target's hidden state h[p] after its final norm and
the next token x[p + 1], it predicts x[p + 2]; chained, its own output g[p] stands in for h[p + 1].
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm, Qwen3_5TextRotaryEmbedding

from training import teacher
from training.delta import fast_delta_rule
from training.loop import Run, train

ROWS, PASSES, PEAK = 2, 3, 2e-3


class Drafter(nn.Module):
    """The trained part; embedding and head are the target's."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(width, eps=eps)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))])
        self.norm = Qwen3_5RMSNorm(width, eps=eps)
        for matrix in (weight for weight in self.parameters() if weight.ndim == 2):
            nn.init.normal_(matrix, std=config.initializer_range)

    def forward(
        self, hidden: Tensor, embedded: Tensor, rope: tuple[Tensor, Tensor], cache: DynamicCache, mask: Tensor | None = None
    ) -> Tensor:
        """hidden, embedded: [rows, length, width]; mask: [1, 1, length, keys] bool -> g, like hidden."""
        halves = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        mixed = self.fc(torch.cat(halves, -1))
        out: Tensor = self.norm(self.layers[0](mixed, position_embeddings=rope, attention_mask=mask, past_key_values=cache))
        return out


def build(target: Qwen3_5ForCausalLM) -> Drafter:
    """Random weights, float32."""
    config = Qwen3_5TextConfig(**target.config.to_dict())
    config._attn_implementation = "sdpa"
    return Drafter(config)


def pass_masks(length: int, passes: int) -> list[Tensor]:
    """Per pass k [1, 1, length, (k + 1) * length]: what chained decoding would see, in the keys of passes 0 to k.

    A query at p in pass k is k draft tokens past its last true hidden state: true keys up to p - k, then one of each pass.
    """
    ages = torch.arange(length)[:, None] - torch.arange(length)
    parts = [[ages >= k] + [ages == k - j for j in range(1, k + 1)] for k in range(passes)]
    return [torch.cat(part, -1)[None, None] for part in parts]


def rope_of(target: Qwen3_5ForCausalLM, start: int, length: int) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [1, length, rotary dim], for positions from `start`."""
    rotary: Qwen3_5TextRotaryEmbedding = target.model.rotary_emb
    cos, sin = rotary(target.lm_head.weight, torch.arange(start, start + length).view(1, 1, -1))
    return cos, sin


def loss_of(drafter: Drafter, target: Qwen3_5ForCausalLM, batch: Tensor) -> Tensor:
    """Mean distillation loss of PASSES chained draft tokens from every position of the windows [rows, length + 1]."""
    with torch.no_grad():
        hidden = target.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
        embedded, wanted = target.model.embed_tokens(batch[:, 1:-1]), target.lm_head(hidden[:, 1:])
    true, cache, losses = hidden[:, :-1], DynamicCache(), []
    rope, given = rope_of(target, 0, true.shape[1]), true
    for depth, mask in enumerate(pass_masks(true.shape[1], PASSES)):
        out = drafter(given, embedded, rope, cache, mask)
        losses.append(teacher.distil(target.lm_head(out)[:, depth:], wanted[:, depth:]))
        given = torch.cat([true[:, :1], out[:, :-1]], 1)
    return torch.stack(losses).mean()


def train_drafter(target: Qwen3_5ForCausalLM, data: Tensor, own: Tensor, minutes: float) -> tuple[Drafter, Run]:
    """From random weights, within the budget."""
    drafter = build(target).train()
    print(f"mtp: {sum(weight.numel() for weight in drafter.parameters()):,} parameters", flush=True)
    batches = teacher.mixed(data, own, ROWS)
    with fast_delta_rule():
        run = train(drafter, lambda batch: loss_of(drafter, target, batch), batches, minutes, PEAK)
    return drafter, run


@torch.no_grad()
def draft_tokens(drafter: Drafter, target: Qwen3_5ForCausalLM, texts: Tensor, depth: int) -> Tensor:
    """[rows, depth] chained draft tokens of what follows the texts [rows, length], whose last token has no hidden state yet."""
    hidden = target.model(input_ids=texts[:, :-1], use_cache=False).last_hidden_state
    given, following, cache, found = hidden, texts[:, 1:], DynamicCache(), []
    for ahead in range(depth):
        start = 0 if ahead == 0 else texts.shape[1] - 2 + ahead
        rope = rope_of(target, start, following.shape[1])
        given = drafter(given, target.model.embed_tokens(following), rope, cache)[:, -1:]
        following = target.lm_head(given).argmax(-1)
        found.append(following)
    return torch.cat(found, 1)


def publish(drafter: Drafter, path: Path) -> None:
    """Write the shard in bfloat16."""
    weights = {f"mtp.{name}": weight.detach().bfloat16().contiguous() for name, weight in drafter.state_dict().items()}
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)


def read(target: Qwen3_5ForCausalLM, path: Path) -> Drafter:
    """The shard's rounded weights in float32, for measuring."""
    drafter = build(target).eval().requires_grad_(False)
    drafter.load_state_dict({name.removeprefix("mtp."): weight.float() for name, weight in load_file(path).items()})
    return drafter
