"""Steps of AdamW within a budget of wall-clock time; progress is time, so it ends well on a machine of any speed."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor], Tensor]
CHECKED = 400


@dataclass
class Run:
    """A run as a model card reports it; the loss is the last steps' average."""

    minutes: float
    steps: int = 0
    loss: float = math.nan


def build_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    groups = [[p for p in model.parameters() if (p.ndim == 2) == matrix] for matrix in (True, False)]
    settings = [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1], "weight_decay": 0.0}]
    return torch.optim.AdamW(settings, betas=(0.9, 0.95))


def learning_rate(progress: float, peak: float) -> float:
    """Warm up over 2 % of the budget, then a cosine down to 2 % of the peak; progress: 0 to 1."""
    return peak * min(progress / 0.02 + 0.01, 0.51 + 0.49 * math.cos(math.pi * min(progress, 1.0)))


def train(
    model: nn.Module,
    loss_of: Loss,
    batches: Iterator[Tensor],
    minutes: float,
    peak: float = 3e-3,
    check: Callable[[], str] | None = None,
) -> Run:
    """Step until the budget is spent; prints what ``check``, if any, says at every CHECKED steps."""
    optimizer, start, run = build_optimizer(model), time.monotonic(), Run(minutes)
    while (spent := (time.monotonic() - start) / 60) < minutes:
        rate = learning_rate(spent / minutes, peak)
        loss = step(model, optimizer, loss_of, next(batches), rate)
        run.loss = loss if math.isnan(run.loss) else run.loss + 0.02 * (loss - run.loss)
        run.steps += 1
        if run.steps % 50 == 0:
            print(f"{spent:6.1f} min  step {run.steps:5d}  loss {run.loss:.4f}  rate {rate:.2e}", flush=True)
        if check is not None and run.steps % CHECKED == 0:
            print(check(), flush=True)
    return run


def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Loss, batch: Tensor, rate: float) -> float:
    """One AdamW step at this learning rate; returns the loss."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(batch)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
