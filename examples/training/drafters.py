"""Train a drafter from the finished target: read the texts, train within the budget, publish, measure."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from hybridge.export.drafters.block import BlockWeights
from training import block, draft, measure, mtp, teacher
from training.corpus import split, tokens
from training.loop import Run
from training.target import evaluate

CARDS = Path(__file__).parent


def own_texts(target: Qwen3_5ForCausalLM, data: Tensor, minutes: float, path: Path) -> Tensor:
    """[rows, WINDOW + 1] texts of the target's own: those kept by an earlier run, or new ones."""
    if path.exists():
        kept: Tensor = torch.load(path, weights_only=True)
        return kept
    return teacher.write_texts(target, data, minutes, path)


def main(kind: str, out: Path, minutes: float, writing: float, scratch: Path) -> None:
    """`kind`: one of RUNS; `writing`: minutes for the target's own texts."""
    target, data = teacher.load(out), tokens(split()[0])
    own = own_texts(target, data, writing, scratch / "own.pt")
    print(f"{len(data):,} bytes of corpus, {own.numel():,} of the target's own", flush=True)
    run, facts, card = RUNS[kind](target, data, own, minutes, out)
    facts |= {"minutes": minutes, "steps": run.steps, "loss": run.loss, "own_texts": len(own), "window": teacher.WINDOW}
    form = "block" if kind in block.KINDS else kind
    text = (CARDS / f"card-{form}.md").read_text().format(**facts)
    card.write_text(text)
    card.chmod(0o644)
    print(text, flush=True)


Outcome = tuple[Run, dict[str, float], Path]


def run_draft(target: Qwen3_5ForCausalLM, data: Tensor, own: Tensor, minutes: float, out: Path) -> Outcome:
    """Train, write and measure the draft model."""
    trained, run = draft.train_draft(target, data, own, minutes)
    rounded, heldout = draft.publish(trained, out / "draft"), tokens(split()[1])
    texts = measure.texts_of(target, heldout)
    facts = {"heldout": evaluate(rounded, heldout), "parameters": rounded.num_parameters()}
    facts |= measure.of_draft(rounded, target, texts) | measure.draft_chains(rounded, texts) | measure.of_exits(target, texts)
    facts["seen"] = run.steps * 2 * draft.ROWS * teacher.WINDOW
    return run, facts, out / "draft" / "README.md"


def run_mtp(target: Qwen3_5ForCausalLM, data: Tensor, own: Tensor, minutes: float, out: Path) -> Outcome:
    """Train, write and measure the multi-token-prediction drafter."""
    trained, run = mtp.train_drafter(target, data, own, minutes)
    mtp.publish(trained, out / "mtp.safetensors")
    rounded = mtp.read(target, out / "mtp.safetensors")
    texts = measure.texts_of(target, tokens(split()[1]))
    facts = measure.drafter_chains(lambda rows: mtp.draft_tokens(rounded, target, rows, measure.LONGEST), texts)
    facts |= {"parameters": sum(weight.numel() for weight in rounded.parameters()), "passes": mtp.PASSES}
    facts["seen"] = run.steps * 2 * mtp.ROWS * teacher.WINDOW
    return run, facts, out / "mtp.md"


def run_block(kind: str, target: Qwen3_5ForCausalLM, data: Tensor, own: Tensor, minutes: float, out: Path) -> Outcome:
    """Train, write and measure a block drafter."""
    texts = measure.texts_of(target, tokens(split()[1]))

    def check(weights: BlockWeights) -> str:
        return measure.corpus_chains(lambda rows: block.draft_tokens(weights, target, rows), texts)

    trained, run = block.train_drafter(kind, target, data, own, minutes, check)
    block.publish(kind, trained, out / kind)
    rounded = block.read(target, out / kind)
    facts = measure.drafter_chains(lambda rows: block.draft_tokens(rounded, target, rows), texts)
    facts |= {"parameters": sum(weight.numel() for weight in rounded.parameters())} | block.facts(kind)
    facts["seen"] = run.steps * 2 * block.ROWS * teacher.WINDOW
    return run, facts, out / kind / "README.md"


RUNS: dict[str, Callable[[Qwen3_5ForCausalLM, Tensor, Tensor, float, Path], Outcome]] = {
    "draft": run_draft,
    "mtp": run_mtp,
    **{kind: partial(run_block, kind) for kind in block.KINDS},
}
