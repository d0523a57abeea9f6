"""Check that every client gives the same tokens: the embedded model for each runtime, 20 prompts of 100 greedy tokens.

The reference is the Session over a .pte with the runtime's own kernels; the eager model without any cache is a client too.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from tokenizers import Tokenizer

import hybridge
from hybridge.cache import HybridCache
from hybridge.export.checkpoint.loading import load_checkpoint
from hybridge.export.cli.embedded import EMBEDDED, code_prompts
from hybridge.export.cli.export import export_checkpoint
from hybridge.export.reference.oracle import load_oracle
from hybridge.runtime import ExportOptions, PromptLookup, Session
from hybridge.runtime.artifacts.artifact import open_artifact
from hybridge.runtime.checks.checked_session import CheckedSession, Oracle
from hybridge.runtime.checks.random_program import RandomProgram
from hybridge.runtime.checks.validation import OPERATIONS_PER_PROGRAM, TOLERANCE, compare
from hybridge.runtime.checks.validation_report import ValidationReport
from hybridge.runtime.native import NativeProcess, NativeSession

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
from genai import greedy
from stock_runner import answers

PROMPTS, NEW = 20, 100
OPERATIONS, NATIVE_OPERATIONS = 2_000, 10_000
OPTIONS = ExportOptions(max_seq_len=1024, verify_len=8)
ARTIFACTS = {
    "llm": OPTIONS,
    "hybridge": dataclasses.replace(OPTIONS, kernels="hybridge"),
    "onnx": dataclasses.replace(OPTIONS, format="onnx"),
}
Continue = Callable[[list[int]], list[int]]
"""A prompt's tokens to the new ones."""


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for kind, options in ARTIFACTS.items():
            export_checkpoint(EMBEDDED, folder / kind, options, force=False, validate=False)
        oracle = load_oracle(EMBEDDED, open_artifact(folder / "llm").manifest)
        tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
        prompts = code_prompts(tokenizer, PROMPTS, characters=200)
        answers = {client: [go(prompt) for prompt in prompts] for client, go in clients(folder, oracle, stack)}
        answers["ExecuTorch's TextLLMRunner"] = by_stock_runner(folder / "llm", tokenizer, prompts)
        print_equal(answers)
        print_errors(folder, oracle, stack)


def clients(folder: Path, oracle: Oracle, stack: ExitStack) -> Iterator[tuple[str, Continue]]:
    """Each by name; the first one is the reference."""
    for kind, options in ARTIFACTS.items():
        session = Session.load(folder / kind)
        what = "onnxruntime" if options.format == "onnx" else f"ExecuTorch, --kernels {kind}"
        yield f"Session, {what}", fresh(session, lambda ids, s=session: s.generate(ids, max_new_tokens=NEW))
        yield f"Session, {what}, prompt lookup", fresh(session, lambda ids, s=session: looked_up(s, ids))
    for kind in ("llm", "hybridge"):
        native = NativeSession(stack.enter_context(NativeProcess(open_artifact(folder / kind))))
        plain, by_lookup = native.generate, native.generate_by_lookup
        yield f"native harness, --kernels {kind}", fresh(native, lambda ids, go=plain: go(ids, max_new_tokens=NEW))
        yield (
            f"native harness, --kernels {kind}, prompt lookup",
            fresh(native, lambda ids, go=by_lookup: go(ids, max_new_tokens=NEW)),
        )
    loaded = hybridge.load(folder / "llm")
    yield "hybridge.load", lambda ids: loaded.generate(torch.tensor([ids]), max_new_tokens=NEW)[0, len(ids) :].tolist()
    yield "onnxruntime-genai", greedy(folder / "onnx", NEW)
    model = load_checkpoint(EMBEDDED).model
    yield "transformers' generate with HybridCache", lambda ids: by_transformers(model, ids)
    yield "transformers without any cache", lambda ids: by_oracle(oracle, ids)


def fresh(session: CheckedSession, go: Callable[[list[int]], Iterator[int]]) -> Continue:
    """From an empty state."""

    def run(ids: list[int]) -> list[int]:
        session.reset()
        return list(go(ids))

    return run


def looked_up(session: Session, ids: list[int]) -> Iterator[int]:
    """Generate with draft tokens from the text, always as many as there are."""
    return session.generate(ids, max_new_tokens=NEW, drafter=PromptLookup(), block_length=session.verify_len)


def by_transformers(model: torch.nn.Module, ids: list[int]) -> list[int]:
    """The unmodified model with our cache."""
    cache = HybridCache.from_config(model.config, max_seq_len=1024)
    with torch.no_grad():
        text = model.generate(torch.tensor([ids]), past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    return text[0, len(ids) :].tolist()


def by_oracle(oracle: Oracle, ids: list[int]) -> list[int]:
    """A forward over the whole text for each token."""
    text = list(ids)
    for _ in range(NEW):
        text.append(int(oracle(text)[-1].argmax()))
    return text[len(ids) :]


def by_stock_runner(artifact: Path, tokenizer: Tokenizer, prompts: list[list[int]]) -> list[list[int]]:
    """It takes and gives text."""
    steps = [step for ids in prompts for step in (("reset",), ("generate", tokenizer.decode(ids), NEW))]
    texts = answers(artifact / "model.pte", artifact / "tokenizer.json", {"all": steps})["all"][1::2]
    return [tokenizer.encode(text).ids for text in texts]


def print_equal(answers: dict[str, list[list[int]]]) -> None:
    """Print how many prompts each client continues like the first."""
    reference = next(iter(answers.values()))
    print(f"| client | prompts of {len(reference)} with the same {NEW} tokens |\n|---|---|")
    for client, texts in answers.items():
        print(f"| {client} | {sum(a == b for a, b in zip(texts, reference, strict=True))} |")


def print_errors(folder: Path, oracle: Oracle, stack: ExitStack) -> None:
    """Random operations against the uncached model, two interleaved native sessions among them."""
    process = stack.enter_context(NativeProcess(open_artifact(folder / "hybridge"), sessions=2))
    runs: dict[str, list[CheckedSession]] = {
        "Session, ExecuTorch, --kernels llm": [Session.load(folder / "llm")],
        "Session, ExecuTorch, --kernels hybridge": [Session.load(folder / "hybridge")],
        "Session, onnxruntime": [Session.load(folder / "onnx")],
        "native harness, two sessions of one program": [NativeSession(process, 0), NativeSession(process, 1)],
    }
    print("\n| runtime | random operations | worst error, of the largest logit |\n|---|---|---|")
    for name, sessions in runs.items():
        report = play(sessions, oracle, NATIVE_OPERATIONS if len(sessions) > 1 else OPERATIONS)
        print(f"| {name} | {report.operations.total():,} | {report.worst_relative:.1e} |")


def play(sessions: list[CheckedSession], oracle: Oracle, operations: int) -> ValidationReport:
    """The sessions take turns."""
    report = ValidationReport(seed=0, tolerance=TOLERANCE)
    for i in range(operations // (OPERATIONS_PER_PROGRAM * len(sessions))):
        programs = [RandomProgram(session, random.Random(f"{i} {number}")) for number, session in enumerate(sessions)]
        for count in range(1, OPERATIONS_PER_PROGRAM + 1):
            for program in programs:
                program.play(count)
        for program in programs:
            report.operations.update(name.split()[0] for name in program.log)
            compare(report, i, program, oracle)
    return report


if __name__ == "__main__":
    main()
