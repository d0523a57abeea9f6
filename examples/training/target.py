"""Train the target: a byte-level Qwen3.5-style hybrid, on the text that ships with every Python."""

import copy
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM

from training.corpus import BATCH, LENGTH, split, tokens, windows
from training.delta import fast_delta_rule
from training.loop import Run, train
from training.models import build_target, build_tokenizer

PROMPTS = ("def read_config(path):\n    ", "The return value is ")
CARD = Path(__file__).with_name("card.md")


def loss_of(model: Qwen3_5ForCausalLM, batch: Tensor) -> Tensor:
    """Mean nats per byte of each window's bytes after its first; batch: [rows, length + 1]."""
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: Qwen3_5ForCausalLM, data: Tensor) -> float:
    """Nats per byte over all of `data`, in windows of LENGTH bytes that start without context."""
    batches = torch.split(data.unfold(0, LENGTH + 1, LENGTH).long(), BATCH)
    losses = [loss_of(model, batch).item() * len(batch) for batch in batches]
    return sum(losses) / sum(map(len, batches))


@torch.no_grad()
def sample(model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    """The prompt and 200 greedy bytes."""
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(inputs["input_ids"], max_new_tokens=200, do_sample=False)
    return str(tokenizer.decode(output[0]))


def save(model: Qwen3_5ForCausalLM, out: Path) -> Qwen3_5ForCausalLM:
    """Write the folder in bfloat16; returns the rounded weights in float32, for measuring."""
    rounded = copy.deepcopy(model).bfloat16()
    rounded.save_pretrained(out)
    build_tokenizer().save_pretrained(out)
    return rounded.float().eval()


def readable(out: Path) -> None:
    """Files are saved for their owner alone; everyone may read them."""
    for path in out.iterdir():
        if path.is_file():
            path.chmod(0o644)


def main(out: Path, minutes: float) -> None:
    """Read the text, train within the budget, publish."""
    kept, held = split()
    data, heldout, model = tokens(kept), tokens(held), build_target()
    print(f"{model.num_parameters():,} parameters, {len(data):,} training bytes, {len(heldout):,} held out", flush=True)
    with fast_delta_rule():
        model.train()
        run = train(model, lambda batch: loss_of(model, batch), windows(data, seed=0), minutes)
    publish(model, run, kept, heldout, out)


def publish(model: Qwen3_5ForCausalLM, run: Run, kept: list[bytes], heldout: Tensor, out: Path) -> None:
    """Write the folder, and the model card with what the rounding left."""
    measured, tokenizer = save(model, out), build_tokenizer()
    loss = evaluate(measured, heldout)
    facts = {"parameters": measured.num_parameters(), "files": len(kept), "corpus": sum(len(text) + 1 for text in kept)}
    facts |= {"minutes": run.minutes, "steps": run.steps, "seen": run.steps * BATCH * LENGTH, "length": LENGTH}
    samples = "\n\n".join(f"```text\n{sample(measured, tokenizer, text)}\n```" for text in PROMPTS)
    card = CARD.read_text().format(**facts, train_loss=run.loss, heldout_loss=loss, samples=samples)
    (out / "README.md").write_text(card)
    readable(out)
    print(f"held-out loss {loss:.4f} nats/byte", flush=True)
