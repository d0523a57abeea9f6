"""Check that an artifact computes the same as its checkpoint: random programs of all operations, greedy generations, texts.

The oracle is the *uncached* forward of the eager model over the whole text, a function from tokens to logits [T, V],
because transformers' own cached forward is wrong for some families. It is causal, so one forward over the longest text
of a branch answers for every prefix.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from tokenizers import Tokenizer as Reference
from torch import Tensor

from hybridge.errors import UsageError
from hybridge.export.check.evaluate import measure_drift
from hybridge.export.check.oracle import disturbed, load_original, round_as, uncached, uncached_with_pictures
from hybridge.export.check.random_program import Oracle, RandomPictures, RandomProgram
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.gptq import stored_rounder
from hybridge.export.quantize.quantize import is_lossy
from hybridge.export.report import Divergence, TextCheck, ValidationReport
from hybridge.export.source.checkpoint import CheckpointSource, LoadedModel
from hybridge.export.source.tokenizer import without_nfc
from hybridge.runtime.artifact.delegates import Stored
from hybridge.runtime.artifact.folder import Artifact, open_artifact
from hybridge.runtime.artifact.options import NEVER, ExportOptions
from hybridge.runtime.binding.drafters import Context, Drafter, OwnDrafter, Proposal
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.measure import delegate_and_cpu

OPERATIONS_PER_PROGRAM = 40
TOLERANCE = 2e-5
"""Largest error that passes, relative to the largest logit, unless float32 itself is less sure of the logits."""

ROUNDING_MARGIN, MOST_ROUNDING = 4, 2e-3
"""An error may be 4 times the change by ``disturbed`` (right sessions reached 1.3 times), and never more than 2e-3."""

ROUNDED_KEYS_TOLERANCE, ROUNDED_ACTIVATIONS_TOLERANCE = 2e-3, 5e-2
"""Tolerances if keys and values, or inputs of linear layers, are rounded to 8 bits at run time: a difference in the last bit
before rounding sometimes makes a whole step, in each layer."""

DELEGATE_TOLERANCES: Mapping[Stored, float] = {"float16": 2e-2, "int8": 1e-1, "int4": 6e-1}
"""Tolerances of prompts that an accelerator reads with weights of fewer bits, and with its own precision.

In random models a layer of 8 bits is off by up to 1 %, and one of 4 bits by 15 %.
"""

DELEGATED_PROGRAMS = 10
"""Most random programs of such an accelerator."""

MOST_DECODED = 256
"""Tokens of the longest text that is decoded again for its bits."""

PROMPTS, NEW_TOKENS = 20, 200
"""Prompts of a validation, and most tokens generated for each."""


def validate_session(
    artifact: Path, source: CheckpointSource, steps: ExportProgress, *, programs: int, seed: int
) -> ValidationReport:
    """Compare an artifact with the eager model of its checkpoint; ``report.check()`` raises if it failed."""
    opened = open_artifact(artifact)
    options, calibration = opened.manifest.options, opened.manifest.calibration
    is_rounded_again = options.delegate != "none" and options.delegate_weights != "float32"
    model = Model.open(opened)
    if is_rounded_again:
        model.delegate_from(NEVER)
    session = Session(model)
    rounded = load_original(source, opened.manifest)
    stored = stored_rounder(opened.program, calibration.stored) if calibration else None
    round_as(rounded, options, stored, opened.manifest.pictures)
    pictures = RandomPictures(session.model) if opened.manifest.pictures is not None else None
    oracle = uncached(rounded.model) if pictures is None else uncached_with_pictures(rounded, pictures.pixels)
    texts = compare_texts(opened, rounded)
    with steps.counted("Validating against eager") as notify:
        report = validate(
            session,
            oracle,
            programs=programs,
            prompts=PROMPTS,
            new_tokens=max(1, min(NEW_TOKENS, session.max_seq_len // 2)),
            seed=seed,
            notify=notify,
            pictures=pictures,
            disturbed=disturbed(rounded.model, oracle),
            same_bits=opened.manifest.has_same_bits and (options.delegate == "none" or is_rounded_again),
        )
    report.tokenizer, report.reader = texts, source.reader
    if is_rounded_again and pictures is None:
        with suppress(UsageError), delegate_and_cpu(opened) as (delegated, _):
            report.delegated = validate(
                delegated,
                oracle,
                programs=min(programs, DELEGATED_PROGRAMS),
                prompts=0,
                new_tokens=0,
                seed=seed,
                notify=lambda done, count: None,
                allowed=DELEGATE_TOLERANCES[options.delegate_weights],
            )
    if is_lossy(options):
        original = uncached(load_original(source, opened.manifest).model)
        report.drift = measure_drift(session, original, oracle, seed=seed)
    return report


def validate(
    session: Session,
    oracle: Oracle,
    *,
    programs: int,
    prompts: int,
    new_tokens: int,
    seed: int,
    notify: Callable[[int, int], None],
    pictures: RandomPictures | None = None,
    disturbed: Oracle | None = None,
    same_bits: bool | None = False,
    allowed: float | None = None,
) -> ValidationReport:
    """Run ``programs`` random programs and ``prompts`` greedy generations of ``new_tokens`` against ``oracle``.

    Args:
        notify: is called with the number done and the total after each.
        pictures: of a model that takes pictures; the oracle knows the pixels of each.
        disturbed: the oracle's logits after a change that float32 cannot see; widens the tolerance of a model that needs it.
        same_bits: logits that are not bit-identical to those of decodes are an error; None does not decode for that.
        allowed: the tolerance, if not that of the artifact's options.

    Raises:
        UsageError: a count is below 0.
    """
    if min(programs, prompts, new_tokens) < 0:
        raise UsageError("programs, prompts and tokens must be 0 or more.")
    most = tolerance(session.manifest.options) if allowed is None else allowed
    report = ValidationReport(seed=seed, tolerance=most, same_bits=bool(same_bits))
    for i in range(programs):
        run = RandomProgram(session, random.Random(f"{seed} {i}"), pictures)
        run.play(OPERATIONS_PER_PROGRAM)
        report.operations.update(name.split()[0] for name in run.log)
        compare(report, i, run, oracle, disturbed)
        if pictures is not None:
            pictures.forget()
        elif i == 0 and same_bits is not None:
            compare_bits(report, session, run)
        notify(i + 1, programs + prompts)
    for i in range(prompts):
        rng = random.Random(f"{seed} prompt {i}")
        _check_generation(report, session, oracle, rng, new_tokens, pictures)
        notify(programs + i + 1, programs + prompts)
    return report


def tolerance(options: ExportOptions) -> float:
    """Return the largest error, relative to the largest logit, of an artifact with ``options`` that passes."""
    if options.rounds_inputs:
        return ROUNDED_ACTIVATIONS_TOLERANCE
    return TOLERANCE if options.kv_dtype == "float32" else ROUNDED_KEYS_TOLERANCE


def compare(
    report: ValidationReport, program: int, run: RandomProgram, oracle: Oracle, disturbed: Oracle | None = None
) -> None:
    """Compare every observation with the oracle, by one forward for each branch of the program's texts.

    disturbed: see ``validate``; it is asked for the text of an error above the tolerance alone.
    """
    want: dict[int, Tensor] = {}
    longest: tuple[int, ...] = ()
    answers = torch.empty(0)
    # In reverse order, a text comes after those that it is a prefix of.
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
        if error <= report.tolerance * report.largest_logit or report.first_divergence is not None:
            continue
        if disturbed is not None and report.largest_logit:
            change = float((disturbed(seen.text) - oracle(seen.text)).abs().max()) / report.largest_logit
            report.tolerance = max(report.tolerance, min(ROUNDING_MARGIN * change, MOST_ROUNDING))
        if not error <= report.tolerance * report.largest_logit:
            report.first_divergence = Divergence(
                program=program, operations=run.log[: seen.operation], position=len(seen.text) - 1, error=error
            )


def compare_bits(report: ValidationReport, session: Session, run: RandomProgram) -> None:
    """Count the observations of short texts that have the bits of decodes, however the program came to read the texts."""
    longest: tuple[int, ...] = ()
    rows: list[Tensor] = []
    for seen in sorted(run.observations, key=lambda seen: seen.text, reverse=True):  # as ``compare``
        if len(seen.text) > MOST_DECODED:
            continue
        if longest[: len(seen.text)] != seen.text:
            session.reset()
            longest, rows = seen.text, [torch.as_tensor(session.decode(token)) for token in seen.text]
        report.decoded += 1
        report.decoded_equal += rows[len(seen.text) - 1].view(torch.int32).equal(seen.logits.view(torch.int32))


def _check_generation(
    report: ValidationReport,
    session: Session,
    oracle: Oracle,
    rng: random.Random,
    new_tokens: int,
    pictures: RandomPictures | None,
) -> None:
    """Compare greedy output with and without speculation with eager greedy, on a repetitive prompt with many draft tokens."""
    check = report.generation

    def generated(drafter: Drafter | None, stats: GenerationStats | None = None) -> list[int]:
        session.reset()
        block = session.verify_len if drafter else None  # always propose, however wrong the draft tokens are
        return list(session.generate(prompt, max_new_tokens=new_tokens, drafter=drafter, block_length=block, stats=stats))

    phrase = [rng.randrange(session.vocab_size) for _ in range(rng.randint(4, 12))]
    prompt = (phrase * 12)[: max(1, min(48, session.max_seq_len - 1))]
    if pictures is not None and session.max_seq_len > len(prompt) + session.model.most_picture_tokens:
        place = rng.randint(0, len(prompt))
        prompt[place:place] = pictures.picture(rng).ids
    stats, own_stats = GenerationStats(), GenerationStats()
    plain = generated(None)
    speculative = generated(CorruptingDrafter(rng, session.vocab_size) if session.verify_len > 1 else None, stats)
    check.prompts += 1
    check.tokens += len(plain)
    check.plain_matches += is_greedy(report, prompt, plain, oracle)
    check.speculative_matches += speculative == plain or is_greedy(report, prompt, speculative, oracle)
    check.accepted += stats.accepted
    check.rejected += stats.proposed - stats.accepted
    check.rollbacks += stats.rollbacks
    if session.manifest.drafter is not None:
        own = generated(OwnDrafter(session), own_stats)
        check.drafted_prompts += 1
        check.drafted_matches += own == plain or is_greedy(report, prompt, own, oracle)
        check.drafted_accepted += own_stats.accepted
        check.drafted_rejected += own_stats.proposed - own_stats.accepted


class CorruptingDrafter:
    """Proposes what followed the text's last two tokens before, sometimes corrupted, so that every number is accepted."""

    needs_hidden = is_cheap = False

    def __init__(self, rng: random.Random, vocab_size: int) -> None:
        self.rng, self.vocab_size = rng, vocab_size

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose ``limit`` tokens."""
        tokens = context.tokens
        place = next((i for i in range(len(tokens) - 3, -1, -1) if tokens[i : i + 2] == tokens[-2:]), None)
        proposed = [] if place is None else tokens[place + 2 :][:limit]
        proposed = [token for token in proposed if token >= 0]  # rows of a picture are none to propose
        proposed += [self.rng.randrange(self.vocab_size) for _ in range(limit - len(proposed))]
        if self.rng.random() < 0.5:
            proposed[self.rng.randrange(limit)] = self.rng.randrange(self.vocab_size)
        return Proposal(proposed)


def is_greedy(report: ValidationReport, prompt: list[int], tokens: list[int], oracle: Oracle) -> bool:
    """Return whether ``tokens`` are the eager model's greedy output: each is its best after those before it.

    One forward over the text answers for every prefix. A tie counts as agreement, and is reported.
    """
    logits = oracle(prompt + tokens[:-1])[len(prompt) - 1 :]
    best = logits.max(-1).values
    chosen = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    tied = (chosen < best) & (best - chosen <= report.tolerance * float(logits.abs().max()))
    report.generation.ties += int(tied.sum())
    return bool(((chosen == best) | tied).all())


# Compare tokenizers, on texts that tokenizers differ on


ODD_TEXTS = (
    "",
    "a",
    " a  text\twith   spaces ",
    "\n\nThe quick brown fox,\r\n  12 of them: 'jumps' over x_y = f(3.5);\n",
    "I'M they'll WE'VE don't",
    "1234567890 3.14 1,000,000 ½ ४२",
    "漢字とかな 한국어 中文,混排",
    "e\u0301 n\u0303 Ünïcödé ﬁ Å",
    "👩\u200d👩\u200d👧 🚀🏳\ufe0f\u200d🌈",
    "شكرا עברית हिन्दी ไทย",
    "def f(x):\n    return x**2  # <|not a token|>\n",
    "\u2581 \u00a0 \u3000 \u200b \ufffd \x00 \x7f",
)


def compare_texts(artifact: Artifact, loaded: LoadedModel) -> TextCheck:
    """Compare the artifact's tokens with the checkpoint's; on no texts if one of them has no tokenizer."""
    wanted = loaded.source.tokenizer
    if artifact.tokenizer is None or wanted.tokenizer is None:
        return TextCheck()
    stock = artifact.manifest.stock_tokenizer
    text = wanted.tokenizer.to_str()
    reference = Reference.from_str(without_nfc(text) if stock is not None and stock.without_nfc else text)
    return compare_tokenizers(Tokenizer.of(artifact), reference, [*wanted.special.values()])


def compare_tokenizers(found: Tokenizer, wanted: Reference, special: Sequence[str]) -> TextCheck:
    """Count the texts, some with special tokens in them, that become the same tokens, those added around them included."""
    check = TextCheck()
    for text in (*ODD_TEXTS, *(f"a{token} b" for token in special)):
        got, want = found.encode(text).ids, wanted.encode(text).ids
        check.texts += 1
        check.equal += got == want
        if got != want and not check.difference:
            check.difference = f"{text!r} is {got}, but should be {want}"
    return check
