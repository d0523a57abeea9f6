"""The finished target as a teacher: its logits, and texts that it wrote itself."""

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import Qwen3_5ForCausalLM

from training.corpus import PAD, windows

PROMPT, WINDOW, ROWS = 64, 384, 128
HARD = 0.5


def load(folder: Path) -> Qwen3_5ForCausalLM:
    """The target, frozen, its rounded weights in float32; it writes on after END, as its training text does."""
    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


def cut_prompts(data: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """[count, PROMPT] int64 pieces of the text, from random places."""
    starts = torch.randint(len(data) - PROMPT, (count, 1), generator=generator)
    return data[starts + torch.arange(PROMPT)].long()


@torch.no_grad()
def write_on(model: Qwen3_5ForCausalLM, prompts: Tensor, new: int, temperature: float = 0.0) -> Tensor:
    """[rows, prompt + new]: greedy at temperature 0."""
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    written: Tensor = model.generate(prompts, max_new_tokens=new, **how)
    return written


def write_texts(model: Qwen3_5ForCausalLM, data: Tensor, minutes: float, path: Path) -> Tensor:
    """[rows, WINDOW + 1] int16 of the target's own texts, greedy and warm by turns, kept at `path` as they grow."""
    generator, start, texts = torch.Generator().manual_seed(1), time.monotonic(), []
    while time.monotonic() - start < minutes * 60:
        for temperature in (0.0, 0.7):
            prompts = cut_prompts(data, ROWS, generator)
            texts.append(write_on(model, prompts, WINDOW + 1 - PROMPT, temperature).short())
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.cat(texts), path)
        print(f"{sum(map(len, texts))} texts of the target's own", flush=True)
    return torch.cat(texts)


def mixed(data: Tensor, own: Tensor, rows: int, seed: int = 0) -> Iterator[Tensor]:
    """[2 * rows, WINDOW + 1] int64 batches, for ever: half from the corpus, half from the target's own texts."""
    generator = torch.Generator().manual_seed(seed)
    for corpus in windows(data, seed, WINDOW, rows):
        yield torch.cat([corpus, own[torch.randint(len(own), (rows,), generator=generator)].long()])


def distil(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean cross-entropy to the teacher's distribution, mixed with its best token; logits [..., vocab]."""
    return distil_each(student, teacher).mean()


def distil_each(student: Tensor, teacher: Tensor) -> Tensor:
    """Return this cross-entropy for each of logits [..., vocab]."""
    soft = teacher.float().softmax(-1)
    wanted = (1 - HARD) * soft + HARD * one_hot(teacher.argmax(-1), teacher.shape[-1])
    return -(student.float().log_softmax(-1) * wanted).sum(-1)
