"""Does an artifact compute what the checkpoint computes? Random programs of all operations, then whole generations.

The oracle is the *uncached* forward of the eager model over the whole text: a function from tokens to logits [T, V], because
transformers' own cached forward is itself wrong for some families. It is causal, so that one forward over the longest text of a
branch answers for every prefix of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.checks.checked_session import CheckedSession, Oracle
from hybridge.runtime.checks.random_program import RandomProgram
from hybridge.runtime.checks.validation_report import Divergence, ValidationReport
from hybridge.runtime.core.drafters import Context, Drafter, PromptLookup, Proposal
from hybridge.runtime.core.statistics import GenerationStats

Notify = Callable[[int, int], None]
Drafted = Callable[[list[int], int, GenerationStats], Iterable[int]]
"""So many tokens behind a prompt, greedily, with the artifact's own drafter; counts what it did."""

OPERATIONS_PER_PROGRAM = 40
TOLERANCE = 2e-5
"""Largest error that passes, relative to the largest logit."""

ROUNDED_KEYS_TOLERANCE, ROUNDED_ACTIVATIONS_TOLERANCE = 2e-3, 5e-2
"""The same where keys and values, or what goes into linear layers, are rounded to 8 bits as they come: a difference in the last
bit of what is rounded then makes a whole step, now and then in each layer."""


def validate(
    session: CheckedSession,
    oracle: Oracle,
    *,
    programs: int,
    prompts: int,
    new_tokens: int,
    seed: int,
    notify: Notify,
    drafted: Drafted | None = None,
) -> ValidationReport:
    """Run ``programs`` random programs and ``prompts`` greedy generations of ``new_tokens`` against ``oracle``.

    notify(done, total) is called after each. drafted: of an artifact with a drafter of its own.
    Raises UsageError for counts below 0.
    """
    if min(programs, prompts, new_tokens) < 0:
        raise UsageError("programs, prompts and tokens must be 0 or more.")
    report = ValidationReport(seed=seed, tolerance=tolerance(session.manifest.options))
    for i in range(programs):
        run = RandomProgram(session, random.Random(f"{seed} {i}"))
        run.play(OPERATIONS_PER_PROGRAM)
        report.operations.update(name.split()[0] for name in run.log)
        compare(report, i, run, oracle)
        notify(i + 1, programs + prompts)
    for i in range(prompts):
        _check_generation(report, session, oracle, random.Random(f"{seed} prompt {i}"), new_tokens, drafted)
        notify(programs + i + 1, programs + prompts)
    return report


def tolerance(options: ExportOptions) -> float:
    """Return how far an artifact with ``options`` may be from the eager model with the same quantized weights."""
    if options.rounds_inputs:
        return ROUNDED_ACTIVATIONS_TOLERANCE
    return TOLERANCE if options.kv_dtype == "float32" else ROUNDED_KEYS_TOLERANCE


def compare(report: ValidationReport, program: int, run: RandomProgram, oracle: Oracle) -> None:
    """Hold every observation against the oracle, with one forward for each branch of the program's texts."""
    want: dict[int, Tensor] = {}
    longest: tuple[int, ...] = ()
    answers = torch.empty(0)
    # In reverse order, every text comes after one that it is a prefix of, if there is one.
    for i in sorted(range(len(run.observations)), key=lambda i: run.observations[i].text, reverse=True):
        text = run.observations[i].text
        if longest[: len(text)] != text:
            longest, answers = text, oracle(text)
        want[i] = answers[len(text) - 1]
    report.largest_logit = max([report.largest_logit, *(float(row.abs().max()) for row in want.values())])
    for i, seen in enumerate(run.observations):
        error = float((seen.logits - want[i]).abs().nan_to_num(float("inf")).max())
        operation, same = run.log[seen.operation - 1].split()[0], bool(seen.logits.argmax() == want[i].argmax())
        report.observe(operation, len(seen.text) - 1, error, same_best=same)
        if error > report.tolerance * report.largest_logit and report.first_divergence is None:
            report.first_divergence = Divergence(
                program=program, operations=run.log[: seen.operation], position=len(seen.text) - 1, error=error
            )


def _check_generation(
    report: ValidationReport,
    session: CheckedSession,
    oracle: Oracle,
    rng: random.Random,
    new_tokens: int,
    drafted: Drafted | None,
) -> None:
    """Greedy with and without speculation against eager greedy, on a prompt that repeats itself: many draft tokens."""
    check = report.generation
    phrase = [rng.randrange(session.vocab_size) for _ in range(rng.randint(4, 12))]
    prompt = (phrase * 12)[: max(1, min(48, session.max_seq_len - 1))]
    stats = GenerationStats()
    session.reset()
    plain = list(session.generate(prompt, max_new_tokens=new_tokens))
    session.reset()
    drafter = Careless(PromptLookup(), rng, session.vocab_size) if session.verify_len > 1 else None
    block = session.verify_len if drafter else None  # always propose, however wrong the draft tokens are
    speculative = list(session.generate(prompt, max_new_tokens=new_tokens, drafter=drafter, block_length=block, stats=stats))
    check.prompts += 1
    check.tokens += len(plain)
    check.plain_matches += is_greedy(report, prompt, plain, oracle)
    check.speculative_matches += speculative == plain or is_greedy(report, prompt, speculative, oracle)
    check.accepted += stats.accepted
    check.rejected += stats.proposed - stats.accepted
    check.rollbacks += stats.rollbacks
    if drafted is not None:
        session.reset()
        own_stats = GenerationStats()
        own = list(drafted(prompt, new_tokens, own_stats))
        check.drafted_prompts += 1
        check.drafted_matches += own == plain or is_greedy(report, prompt, own, oracle)
        check.drafted_accepted += own_stats.accepted
        check.drafted_rejected += own_stats.proposed - own_stats.accepted


class Careless:
    """A drafter whose tokens are sometimes spoilt, so that blocks of every length are accepted and rejected."""

    def __init__(self, drafter: Drafter, rng: random.Random, vocab_size: int) -> None:
        self.drafter, self.rng, self.vocab_size = drafter, rng, vocab_size
        self.needs_hidden, self.is_free = drafter.needs_hidden, False

    def propose(self, context: Context, limit: int) -> Proposal:
        proposed = self.drafter.propose(context, limit).tokens or [self.rng.randrange(self.vocab_size) for _ in range(limit)]
        if self.rng.random() < 0.5:
            proposed[self.rng.randrange(len(proposed))] = self.rng.randrange(self.vocab_size)
        return Proposal(proposed)


def is_greedy(report: ValidationReport, prompt: list[int], tokens: list[int], oracle: Oracle) -> bool:
    """Return whether each token is the eager model's best after what precedes it: the whole is then its greedy output.

    One forward over the text answers for every prefix. A tie counts as agreement, and is counted.
    """
    logits = oracle(prompt + tokens[:-1])[len(prompt) - 1 :]
    best = logits.max(-1).values
    chosen = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    tied = (chosen < best) & (best - chosen <= report.tolerance * float(logits.abs().max()))
    report.generation.ties += int(tied.sum())
    return bool(((chosen == best) | tied).all())
