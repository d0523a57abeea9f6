"""Measure how often a drafter is right about what the target writes greedily: on held-out text, and on the target's own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from training import teacher
from training.corpus import BATCH, LENGTH

DEPTHS, LONGEST = (1, 2, 3, 4, 7), 7
OWN_ROWS, OWN_BYTES, STARTS, PREFIX, CHECKED = 20, 300, 512, 256, 128
Best = Callable[[Tensor], Tensor]


@dataclass
class Texts:
    """The texts that are measured on; all int64 byte ids."""

    corpus: Tensor  # [windows, LENGTH] held-out text
    own: Tensor  # [OWN_ROWS, teacher.PROMPT + OWN_BYTES] held-out prompts and what the target wrote after them
    starts: Tensor  # [STARTS, PREFIX + 1 + LONGEST] held-out prefixes and the target's greedy continuation


def texts_of(target: Qwen3_5ForCausalLM, heldout: Tensor) -> Texts:
    """Always the same ones for a target."""
    generator = torch.Generator().manual_seed(2)
    own = teacher.write_on(target, teacher.cut_prompts(heldout, OWN_ROWS, generator), OWN_BYTES)
    places = torch.randint(len(heldout) - PREFIX, (STARTS, 1), generator=generator)
    starts = teacher.write_on(target, heldout[places + torch.arange(PREFIX)].long(), 1 + LONGEST)
    return Texts(heldout.unfold(0, LENGTH, LENGTH).long(), own, starts)


@torch.no_grad()
def best_two(model: Qwen3_5ForCausalLM, ids: Tensor) -> Tensor:
    """[rows, length, 2]: the model's best and second best next byte at each position."""
    parts = [model(input_ids=rows, use_cache=False).logits.topk(2).indices for rows in torch.split(ids, BATCH)]
    return torch.cat(parts)


@torch.no_grad()
def exits(target: Qwen3_5ForCausalLM, ids: Tensor) -> Tensor:
    """[layers - 1, rows, length]: the target's best next byte if it stopped after layer 1, 2, 3."""
    parts = []
    for rows in torch.split(ids, BATCH):
        states = target.model(input_ids=rows, use_cache=False, output_hidden_states=True).hidden_states[1:-1]
        parts.append(torch.stack([target.lm_head(target.model.norm(state)).argmax(-1) for state in states]))
    return torch.cat(parts, 1)


def wanted(target: Qwen3_5ForCausalLM, texts: Texts) -> tuple[Tensor, Tensor]:
    """The target's greedy choice at each position of `corpus`, and at those of `own` that it wrote itself."""
    return best_two(target, texts.corpus)[..., 0], texts.own[:, teacher.PROMPT :]


def of_draft(draft: Qwen3_5ForCausalLM, target: Qwen3_5ForCausalLM, texts: Texts) -> dict[str, float]:
    """Agreement, and the gain from a second candidate where the first is wrong."""
    found = {}
    for name, ids, right in zip(("corpus", "own"), (texts.corpus, texts.own), wanted(target, texts), strict=True):
        pairs = best_two(draft, ids)
        pairs = pairs if name == "corpus" else pairs[:, teacher.PROMPT - 1 : -1]
        first, second = (pairs[..., rank] == right for rank in (0, 1))
        found[f"{name}_agreement"] = first.float().mean().item()
        found[f"{name}_second"] = second[~first].float().mean().item()
    return found


def of_exits(target: Qwen3_5ForCausalLM, texts: Texts) -> dict[str, float]:
    """Agreement of the target's first layers with all of it."""
    corpus, own = wanted(target, texts)
    early = {"corpus": exits(target, texts.corpus) == corpus}
    early["own"] = exits(target, texts.own)[..., teacher.PROMPT - 1 : -1] == own
    return {
        f"{name}_exit_{layer}": hits.float().mean().item()
        for name, layers in early.items()
        for layer, hits in enumerate(layers, 1)
    }


def chain_figures(name: str, hits: Tensor) -> dict[str, float]:
    """hits: [starts, LONGEST] bool -> share of starts with the first d draft tokens all right, mean accepted of 4 and of 7."""
    unbroken = hits.float().cumprod(1)
    shares = {f"{name}_depth_{depth}": unbroken[:, depth - 1].mean().item() for depth in DEPTHS}
    return shares | {f"{name}_mean_{of}": unbroken[:, :of].sum(1).mean().item() for of in (4, 7)}


def draft_chains(draft: Qwen3_5ForCausalLM, texts: Texts) -> dict[str, float]:
    """Chain draft tokens of the draft model: as long as all are right, its input is the target's own text."""
    own = best_two(draft, texts.own)[:, teacher.PROMPT : -1, 0] == texts.own[:, teacher.PROMPT + 1 :]
    corpus = best_two(draft, texts.starts)[:, PREFIX:-1, 0] == texts.starts[:, PREFIX + 1 :]
    return chain_figures("corpus", corpus) | chain_figures("own", own.unfold(1, LONGEST, 1).flatten(0, 1))


def drafter_chains(propose: Callable[[Tensor], Tensor], texts: Texts) -> dict[str, float]:
    """Draft tokens of a drafter that reads the target's hidden states; in the target's own texts from every second byte.

    propose: [rows, LONGEST] of what follows the texts [rows, length].
    """

    def hits(rows: Tensor, start: int) -> Tensor:
        return propose(rows[:, :start]) == rows[:, start : start + LONGEST]

    corpus = torch.cat([hits(rows, PREFIX + 1) for rows in torch.split(texts.starts, 64)])
    begins = range(teacher.PROMPT + 1, texts.own.shape[1] - LONGEST + 1, 2)
    own = torch.cat([hits(texts.own, start) for start in begins])
    return chain_figures("corpus", corpus) | chain_figures("own", own)


def corpus_chains(propose: Callable[[Tensor], Tensor], texts: Texts) -> str:
    """Return how many of LONGEST draft tokens are accepted on held-out text, and how often the first is, as a line."""
    some = texts.starts[:CHECKED]
    right = (propose(some[:, : PREFIX + 1]) == some[:, PREFIX + 1 :]).float().cumprod(1)
    return f"held out: {right.sum(1).mean():.2f} of {LONGEST} accepted, the first {right[:, 0].mean():.3f}"
