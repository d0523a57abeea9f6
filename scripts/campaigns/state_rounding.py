"""Measure what a bfloat16 recurrent state costs: the embedded model token by token over code it has not seen."""

import torch
from torch import Tensor

from campaigns import campaign
from hybridge.export.cli.embedded import EMBEDDED, code_prompts
from hybridge.export.program.eager import eager_session
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer

TEXTS, TOKENS, PART = 2, 2048, 512


def main() -> None:
    """Print a table: divergence and agreement with the float32 state, by position."""
    campaign.parser("state-rounding", __doc__).parse_args()
    torch.set_num_threads(1)
    texts = code_prompts(Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")), TEXTS, characters=4 * TOKENS)
    kinds = {"float32": {}, "state in bfloat16": {"state": torch.bfloat16}, "state in float16": {"state": torch.float16}}
    runs = {name: torch.stack([logits(text[:TOKENS], **kind) for text in texts]) for name, kind in kinds.items()}
    runs["8-bit keys and values"] = torch.stack([logits(text[:TOKENS], kv_cache="int8") for text in texts])
    exact = runs.pop("float32").log_softmax(-1)
    print(f"{TEXTS} texts of {TOKENS} tokens of code, against float32\n")
    print("| rounded | positions | KL, nats | same best token | largest change of a log probability |")
    print("| --- | --- | --- | --- | --- |")
    for name, run in runs.items():
        for start in range(0, TOKENS, PART):
            row(name, start, exact[:, start : start + PART], run[:, start : start + PART].log_softmax(-1))


def logits(text: list[int], state: torch.dtype = torch.float32, kv_cache: str = "float32") -> Tensor:
    """[T, vocabulary] of a text of exactly T tokens, with the recurrent state rounded to ``state`` after each."""
    assert len(text) == TOKENS, f"a text has only {len(text)} tokens"
    options = ExportOptions(max_seq_len=TOKENS, snapshot_slots=0, kernels="hybridge", kv_cache=kv_cache)
    session = eager_session(load_checkpoint(EMBEDDED).model, options)
    program = session.model.program
    assert program is not None
    states = [
        torch.from_numpy(program.buffer(name)) for name in program.names if name.endswith("recurrent_state")
    ]  # its memory
    assert states
    rows = []
    for token in text:
        rows.append(torch.from_numpy(session.decode(token)))
        for each in states:
            each.copy_(each.to(state).float())
    return torch.stack(rows)


def row(name: str, start: int, exact: Tensor, rounded: Tensor) -> None:
    """Print one."""
    kl = (exact.exp() * (exact - rounded)).sum(-1).mean()
    agree = (exact.argmax(-1) == rounded.argmax(-1)).float().mean()
    change = (exact - rounded).abs().max()
    print(f"| {name} | {start:,}–{start + PART - 1:,} | {kl:.1e} | {100 * agree:.2f} % | {change:.1e} |", flush=True)


if __name__ == "__main__":
    main()
