"""Measure the loss by rounding: an artifact's logits compared with those of its checkpoint in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.errors import UsageError
from hybridge.export.check.oracle import load_original, uncached
from hybridge.export.check.picture_prompts import EncoderFigures, PicturePrompts
from hybridge.export.check.random_program import Oracle
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.bits import grid_of
from hybridge.export.quantize.quantize import rounder_of
from hybridge.export.report import Figures
from hybridge.export.source.checkpoint import CheckpointSource
from hybridge.export.texts import continued, logits_of, read_text, sampled, windows
from hybridge.runtime.artifact.folder import Artifact, open_artifact
from hybridge.runtime.artifact.manifest import Manifest
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.measure import delegate_and_cpu


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The texts of an evaluation: windows of the file ``text``, or the prompts of the file ``prompts`` with answers.

    image_prompts: a file of prompts with pictures, which are answered, too. Without any, texts that the artifact samples from
    one token. window: tokens of a text; tokens: of all texts.
    """

    text: Path | None = None
    prompts: Path | None = None
    image_prompts: Path | None = None
    window: int = 512
    tokens: int = 4096
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The comparison of an artifact with its checkpoint. layers: the cost of each weight by itself, if asked for.

    encoder: of prompts with pictures, of whose answers the comparison is; positions count from the prompt's last token.
    delegate: of an artifact with an accelerator, second halves of texts whose first halves it has read, compared with the
    artifact's own kernels; ``unused`` says why there is none.
    """

    comparison: ComparisonReport
    layers: list[LayerCost] | None = None
    encoder: EncoderFigures | None = None
    delegate: ComparisonReport | None = None
    unused: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        costs = {} if self.layers is None else {"layers": [asdict(each) for each in self.layers]}
        encoder = {} if self.encoder is None else {"encoder": asdict(self.encoder)}
        delegate = {} if self.delegate is None else {"delegate": self.delegate.to_dict()}
        return self.comparison.to_dict() | costs | encoder | delegate


def evaluate(
    artifact: Path, source: CheckpointSource, texts: Texts, steps: ExportProgress, *, layers: bool = False
) -> Evaluation:
    """Compare ``artifact`` with its checkpoint on ``texts``; ``layers`` also measures each weight by itself.

    Raises UsageError for texts that are too short or too long for the artifact, and for a checkpoint of another model.
    """
    opened = open_artifact(artifact)
    session = Session.of(opened)
    if texts.image_prompts is not None:
        return _evaluate_pictures(opened, session, source, texts, steps, layers=layers)
    chosen = list(token_texts(opened, session, texts, steps))
    original = uncached(load_original(source, opened.manifest).model)
    comparison = Comparison()
    with steps.counted("Comparing with the checkpoint") as notify:
        for done, text in enumerate(chosen):
            comparison.add(text, original(text), logits_of(session, text))
            notify(done + 1, len(chosen))
    costs = layer_costs(opened.manifest, source, chosen, steps) if layers else None
    delegate, unused = None, ""
    if opened.manifest.options.delegate != "none":
        try:
            delegate = _compare_delegate(opened, chosen, steps)
        except UsageError as error:
            unused = str(error)
    return Evaluation(comparison=comparison.report(), layers=costs, delegate=delegate, unused=unused)


def _compare_delegate(artifact: Artifact, texts: Sequence[list[int]], steps: ExportProgress) -> ComparisonReport:
    """Compare texts that an accelerator has begun to read with the same by the CPU. Raises UsageError if it is not in use."""
    comparison = Comparison()
    with delegate_and_cpu(artifact) as both, steps.counted("Comparing the accelerator with the CPU") as notify:
        for done, text in enumerate(texts):
            half = max(1, len(text) // 2)
            delegated, by_cpu = (logits_of(session, text[half:], text[:half]) for session in both)
            comparison.add(text[half - 1 :], by_cpu, delegated)
            notify(done + 1, len(texts))
    return comparison.report()


def _evaluate_pictures(
    artifact: Artifact, session: Session, source: CheckpointSource, texts: Texts, steps: ExportProgress, *, layers: bool
) -> Evaluation:
    if texts.text or texts.prompts or layers:
        raise UsageError(
            "--image-prompts are the texts of an evaluation by themselves; leave --text, --prompts and --layers out."
        )
    assert texts.image_prompts is not None
    prompts, comparison = PicturePrompts(artifact, session, texts.image_prompts), Comparison()
    loaded = load_original(source, artifact.manifest)
    with steps.counted("Answering about pictures, and comparing with the checkpoint") as notify:
        length = min(texts.window, session.max_seq_len)
        encoder = prompts.compare(loaded, length, texts.seed, comparison.add, notify)
    return Evaluation(comparison=comparison.report(), encoder=encoder)


def token_texts(artifact: Artifact, session: Session, texts: Texts, steps: ExportProgress) -> Iterable[list[int]]:
    """Return the tokens of each text. Raises UsageError."""
    if texts.text is not None and texts.prompts is not None:
        raise UsageError("--text and --prompts are two kinds of texts; give one of them.")
    if artifact.tokenizer is None and (texts.text or texts.prompts):
        raise UsageError(f"{artifact.folder} has no tokenizer.json, so text cannot be turned into tokens; leave the texts out.")
    length = min(texts.window, session.max_seq_len)
    count = max(1, texts.tokens // length)
    if texts.text is not None:
        text, name = read_text(texts.text, "--text"), f"--text {texts.text}"
        return windows(Tokenizer.of(artifact), text, length, count, name, ", or shorter windows by --window")
    if texts.prompts is not None:
        prompts, tokenizer = read_text(texts.prompts, "--prompts"), Tokenizer.of(artifact)
        with steps.step("Answering the prompts"):
            return list(continued(session, tokenizer, prompts, length, f"--prompts {texts.prompts}", texts.seed))
    with steps.step("Sampling texts"):
        return list(sampled(session, length, count, texts.seed))


# Compare the logits of two models after each token of some texts: divergence, agreement and perplexity by position


FIRST_RANGE = 64
"""Positions of the first range; each further one ends at twice the position of the one before it."""


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """The figures of all positions, and of ranges of them."""

    texts: int
    whole: Figures
    ranges: list[Figures]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)


class Comparison:
    """Collects the logits of two models."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []

    def add(self, tokens: list[int], original: Tensor, model: Tensor) -> None:
        """Add logits [T, V] of both models after each of the T tokens of one text."""
        self._rows.append(_rows(torch.tensor(tokens), original, model))

    def report(self) -> ComparisonReport:
        """Return the figures of the added texts, of which there must be one."""
        rows = torch.cat(self._rows)
        longest = int(rows[:, 0].max()) + 1
        ends = [min(FIRST_RANGE << i, longest) for i in range(max(1, math.ceil(math.log2(longest / FIRST_RANGE)) + 1))]
        ranges = [_figures(rows, first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]
        return ComparisonReport(texts=len(self._rows), whole=_figures(rows, 0, longest), ranges=ranges)


def divergence(original: Tensor, model: Tensor) -> Tensor:
    """Return the KL divergence [T] in nats of logits [T, V] from the original's, never below 0."""
    want, got = original.log_softmax(-1), model.log_softmax(-1)
    total: Tensor = (want.exp() * (want - got)).sum(-1).clamp(min=0)  # rounding errors may make it slightly less than 0
    return total


def _rows(tokens: Tensor, original: Tensor, model: Tensor) -> Tensor:
    """Return a row for each position: itself, KL, same best token, log-probability of the next token by model and original."""
    following = torch.cat([tokens[1:], tokens[:1]])[:, None]  # the last one has none, and is marked by NaN
    logs = [each.log_softmax(-1).gather(-1, following)[:, 0] for each in (model, original)]
    for each in logs:
        each[-1] = math.nan
    same = (original.argmax(-1) == model.argmax(-1)).double()
    columns = [torch.arange(len(tokens)), divergence(original, model), same, *logs]
    return torch.stack([column.double() for column in columns], 1)


def _figures(rows: Tensor, first: int, end: int) -> Figures:
    chosen = rows[(rows[:, 0] >= first) & (rows[:, 0] < end)]
    kl, same, of_model, of_original = chosen[:, 1], chosen[:, 2], chosen[:, 3], chosen[:, 4]
    count = len(chosen)
    return Figures(
        first=first,
        last=end - 1,
        positions=count,
        kl=float(kl.mean()),
        kl_error=float(kl.std(correction=0)) / math.sqrt(count),
        kl_99=float(kl.kthvalue(math.ceil(0.99 * count)).values),
        kl_largest=float(kl.max()),
        top1_agreement=float(same.mean()),
        perplexity=_perplexity(of_model),
        original_perplexity=_perplexity(of_original),
    )


def _perplexity(logs: Tensor) -> float | None:
    known = logs[~logs.isnan()]
    return math.exp(min(700.0, -float(known.mean()))) if len(known) else None


DRIFT_TEXTS, DRIFT_TOKENS = 8, 65


def measure_drift(session: Session, original: Oracle, rounded: Oracle, *, seed: int) -> Figures:
    """Compare two models on texts that the artifact samples at temperature 1, each from a token of its own."""
    comparison = Comparison()
    for text in sampled(session, max(2, min(DRIFT_TOKENS, session.max_seq_len)), DRIFT_TEXTS, seed):
        comparison.add(text, original(text), rounded(text))
    return comparison.report().whole


# Measure the cost of each weight by itself: the checkpoint with one weight rounded, compared with it in float32


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """The mean KL divergence in nats from rounding one weight of ``elements`` numbers to ``bits``; the rest is float32."""

    name: str
    bits: int
    elements: int
    kl: float

    @property
    def kind(self) -> str:
        """Return the name without the numbers of layers."""
        return ".".join(part for part in self.name.split(".") if not part.isdigit())


def layer_costs(
    manifest: Manifest, source: CheckpointSource, texts: Sequence[list[int]], steps: ExportProgress
) -> list[LayerCost]:
    """Measure each weight that the artifact has in fewer bits, on ``texts``; a forward over all texts for each weight.

    Weights are rounded as the artifact's options say without data, even where it was calibrated. What rounding
    activations costs is not part of it. Raises UsageError where the checkpoint is of another model, and for weights
    that were not rounded.
    """
    if manifest.options.quantize == "keep":
        raise UsageError("--layers measures what rounding costs, and this artifact has the bits of its file; leave it out.")
    model = load_original(source, manifest).model
    oracle, costs = uncached(model), []
    originals = [oracle(text) for text in texts]
    with steps.counted("Rounding one weight at a time") as notify:
        for done, (name, bits) in enumerate(manifest.bits.items()):
            with rounded_alone(model, name, bits, manifest) as elements:
                if elements:
                    total = sum(
                        float(divergence(want, oracle(text)).sum()) for text, want in zip(texts, originals, strict=True)
                    )
                    costs.append(LayerCost(name=name, bits=bits, elements=elements, kl=total / sum(map(len, texts))))
            notify(done + 1, len(manifest.bits))
    return costs


@contextmanager
def rounded_alone(model: PreTrainedModel, name: str, bits: int, manifest: Manifest) -> Iterator[int]:
    """Round the weight ``name`` inside the body; yield the number of its elements, 0 for a head that is its embedding."""
    stored, as_rows, back = _weight(model, name)
    if name != _first_name(model, stored):
        yield 0
        return
    before = stored.detach().clone()
    rounded = rounder_of(manifest.options)(name, as_rows(before), grid_of(bits, manifest.options))
    with torch.no_grad():
        stored.copy_(back(rounded.numbers()))
        try:
            yield stored.numel()
        finally:
            stored.copy_(before)


def _weight(model: PreTrainedModel, name: str) -> tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return a weight as the model has it, and functions from that to rows [N, K] and back."""
    parent, _, last = name.rpartition(".")
    owner: Any = model.get_submodule(parent)
    held = getattr(owner, last)
    if isinstance(held, Tensor):  # experts' [E, N, K], or [E, K, N]
        turned, shape = owner.is_transposed, held.shape
        if turned:
            return held, lambda w: w.transpose(1, 2).flatten(0, 1), lambda r: r.view(shape[0], shape[2], -1).transpose(1, 2)
        return held, lambda w: w.flatten(0, 1), lambda r: r.view(shape)
    return held.weight, lambda w: w, lambda r: r


def _first_name(model: PreTrainedModel, stored: Tensor) -> str:
    """Return the first name, of a layer or of experts' weights, that ``stored`` has in the model."""
    found: str = next(name for name, each in model.named_parameters() if each is stored)
    return found.removesuffix(".weight")
