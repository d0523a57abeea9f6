"""Train the draft model: one linear-attention layer that predicts what the target would write."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from training import teacher
from training.delta import fast_delta_rule
from training.loop import Run, train
from training.models import build_draft
from training.target import readable, save

ROWS = 4


def loss_of(draft: Qwen3_5ForCausalLM, target: Qwen3_5ForCausalLM, batch: Tensor) -> Tensor:
    """Distillation loss at every position of the windows [rows, length + 1]."""
    ids = batch[:, :-1]
    with torch.no_grad():
        wanted = target(input_ids=ids, use_cache=False).logits
    return teacher.distil(draft(input_ids=ids, use_cache=False).logits, wanted)


def train_draft(target: Qwen3_5ForCausalLM, data: Tensor, own: Tensor, minutes: float) -> tuple[Qwen3_5ForCausalLM, Run]:
    """From random weights, within the budget."""
    draft = build_draft().train()
    print(f"draft: {draft.num_parameters():,} parameters", flush=True)
    with fast_delta_rule():
        run = train(draft, lambda batch: loss_of(draft, target, batch), teacher.mixed(data, own, ROWS), minutes)
    return draft, run


def publish(draft: Qwen3_5ForCausalLM, out: Path) -> Qwen3_5ForCausalLM:
    """Write the folder; returns the rounded weights in float32, for measuring."""
    measured = save(draft, out)
    readable(out)
    return measured
