"""``hybridge validate`` and ``evaluate``: compare an artifact with its checkpoint, for errors and for the cost of rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from hybridge.errors import UsageError
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.manifest import GOLDEN
from hybridge.runtime.artifact.options import DEFAULT_PROGRAMS
from hybridge.runtime.cli.console import check_writable_file, err, out, print_json, table, write_json
from hybridge.runtime.cli.options import (
    AgainstOption,
    ArtifactArgument,
    HtmlOption,
    JsonOption,
    OptionalAgainstOption,
    ReportOption,
)

if TYPE_CHECKING:  # these need PyTorch
    from hybridge.export.check.evaluate import ComparisonReport, LayerCost
    from hybridge.export.check.picture_prompts import EncoderFigures
    from hybridge.export.report import Figures

VALIDATE_EXAMPLES = (
    "hybridge validate OUT",
    "hybridge validate OUT --against CHECKPOINT",
    "hybridge validate OUT --against CHECKPOINT --report report.json",
    "hybridge validate OUT --against CHECKPOINT --html errors.html",
)
EVALUATE_EXAMPLES = (
    "hybridge evaluate OUT --against CHECKPOINT",
    "hybridge evaluate OUT --against CHECKPOINT --text novel.txt --tokens 20000",
    "hybridge evaluate OUT --against CHECKPOINT --image-prompts pictures.jsonl",
    "hybridge evaluate OUT --against CHECKPOINT --layers --plot kl.svg",
)
MOST_ROWS = 30
"""Most weights in a table; the JSON has all."""
COLUMNS = ("KL, nats", "99 %", "largest", "same best token", "perplexity", "original's")


def validate(
    artifact: ArtifactArgument,
    against: OptionalAgainstOption = None,
    adapter: Annotated[
        list[Path] | None, typer.Option("--adapter", help="The adapters that were merged into it, in their order.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The folder whose tokenizer it was exported with, if not the checkpoint's.")
    ] = None,
    mmproj: Annotated[
        Path | None, typer.Option(help="The encoder of pictures that it was exported with, if it is not beside the GGUF file.")
    ] = None,
    programs: Annotated[int, typer.Option(min=0, help="Random programs of 40 operations each.")] = DEFAULT_PROGRAMS,
    seed: Annotated[int, typer.Option(help="Of the random programs and prompts.")] = 0,
    report: ReportOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Hold an artifact against the uncached eager model: random programs of all operations, greedy generation, and texts.

    Without --against, replay the steps that its export stored with the eager model's logits, which needs no PyTorch.
    """
    for file in filter(None, (report, html)):
        check_writable_file(file)
    if against is None:
        needless = {"--html": html, "--adapter": adapter, "--tokenizer": tokenizer, "--mmproj": mmproj}
        if given := [name for name, value in needless.items() if value]:
            raise UsageError(f"{' and '.join(given)}: these compare with a checkpoint; name it by --against.")
        replay(artifact, report=report, json=json)
        return
    if html is not None:
        from hybridge.runtime.html_report import check_matplotlib, validation_sections, write_page

        check_matplotlib("--html")
    from hybridge.export.check.validate import validate_session
    from hybridge.export.cli.progress import ConsoleProgress, plain_rows, print_report
    from hybridge.export.source.checkpoint import resolve_checkpoint
    from hybridge.export.source.files import ignored_parts

    steps = ConsoleProgress(err)
    source = resolve_checkpoint(against, adapter or (), tokenizer, mmproj)
    result = validate_session(artifact, source, steps, programs=programs, seed=seed)
    for text in ignored_parts(source.path):
        steps.warn(text)
    if report is not None:
        write_json(report, result.to_dict())
    if html is not None:
        shown = plain_rows(result)
        if (first := result.first_divergence) is not None:
            place = f"program {first.program} of seed {result.seed}, at position {first.position}, after: "
            shown.append(("first divergence", place + " · ".join(first.operations)))
        sections = validation_sections(result.worst_at, result.largest_logit, result.tolerance, result.passed, shown)
        write_page(html, artifact.resolve().name, sections)
    if json:
        print_json(result.to_dict())
    else:
        print_report(result, out)
    result.check()


def replay(artifact: Path, *, report: Path | None, json: bool) -> None:
    """Check an artifact's hashes, and replay its golden steps. Raises ArtifactError for one that computes wrongly."""
    from hybridge.runtime.binding.model import Model

    opened = open_artifact(artifact)
    found = Model.open(opened).validate() if GOLDEN in opened.names else None
    figures = {"steps": 0} if found is None else asdict(found)
    if report is not None:
        write_json(report, figures)
    if json:
        print_json(figures)
        return
    if found is None:
        out.print(
            "The files are those of the manifest. There are no golden steps: the weights were checked by hash and reader."
        )
        return
    bits = f"bit-identical to those where it was exported ({found.exported_on})"
    if not found.same_bits:
        sets = f": {found.instruction_set} here, {found.exported_on} there"
        sets = sets if found.instruction_set != found.exported_on else ", by another version of hybridge"
        bits = f"others than where it was exported{sets}"
    rows = [
        ("golden steps", f"{found.steps}, all right"),
        ("worst error", f"{found.worst:.2g} of the largest logit, {found.tolerance:.2g} of the largest logit allowed"),
        ("bits", bits),
    ]
    shown = table("", "", "")
    for name, value in rows:
        shown.add_row(name, value)
    out.print(shown)


def evaluate(
    artifact: ArtifactArgument,
    against: AgainstOption,
    text: Annotated[Path | None, typer.Option("--text", help="A file of text, to be cut into windows.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="A file with a prompt on each line, which the artifact answers first.")
    ] = None,
    image_prompts: Annotated[
        Path | None,
        typer.Option(
            "--image-prompts",
            help='A JSONL file, each line such as {"prompt": "What is this?", "images": ["cat.jpg"]}, answered first.',
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=2, help="Tokens of each text; at most what the artifact can hold.")] = 512,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of all texts together.")] = 4096,
    seed: Annotated[int, typer.Option(help="Of what the artifact samples: answers, or whole texts where none are given.")] = 0,
    layers: Annotated[
        bool, typer.Option("--layers", help="Also round each weight by itself: which ones cost how much. A forward for each.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="A picture of the divergence by position: .svg, .png or .pdf.")
    ] = None,
    report: ReportOption = None,
    json: JsonOption = False,
) -> None:
    """Measure what rounding costs: KL divergence from the checkpoint in float32, agreement, perplexity of both, by position.

    The divergence is the figure to decide by: a rounded model's perplexity may be lower than the original's by chance.
    """
    for file in filter(None, (report, plot)):
        check_writable_file(file)
    if plot is not None:
        from hybridge.runtime.html_report import check_plot, plot_divergence

        check_plot(plot)
    from hybridge.export.check.evaluate import Texts
    from hybridge.export.check.evaluate import evaluate as compare
    from hybridge.export.cli.progress import ConsoleProgress
    from hybridge.export.source.checkpoint import resolve_checkpoint

    texts = Texts(text=text, prompts=prompts, image_prompts=image_prompts, window=window, tokens=tokens, seed=seed)
    result = compare(artifact, resolve_checkpoint(against), texts, ConsoleProgress(err), layers=layers)
    if plot is not None:
        plot_divergence([vars(each) for each in result.comparison.ranges if each.positions], plot)
    if report is not None:
        write_json(report, result.to_dict())
    if json:
        print_json(result.to_dict())
    else:
        print_comparison(result.comparison)
        if result.delegate is not None:
            print_comparison(result.delegate, "Divergence of what follows prompts that the accelerator read from the CPU's own")
        elif result.unused:
            out.print(result.unused, highlight=False, markup=False, soft_wrap=True)
        if result.encoder is not None:
            print_encoder(result.encoder)
        if result.layers is not None:
            _print_groups("Each kind of weight, the sum of its weights rounded alone", result.layers, lambda cost: cost.kind)
            _print_groups("The weights that cost most for their size", result.layers, lambda cost: cost.name)


def print_comparison(report: ComparisonReport, title: str = "Divergence from the checkpoint in float32") -> None:
    """Print a row for each range of positions, and one for all."""
    grid = table(f"{title}, over {report.texts} texts", "positions", "tokens", *COLUMNS)
    for each in report.ranges:
        grid.add_row(f"{each.first:,} to {each.last:,}", *_cells(each))
    grid.add_section()
    grid.add_row("all", *_cells(report.whole))
    out.print(grid)


def print_encoder(figures: EncoderFigures) -> None:
    """Print how far the embeddings of pictures are from the checkpoint's."""
    of = f"{figures.rows:,} rows of {figures.pictures} pictures in {figures.parts} parts"
    error = f"relative error {figures.error:.2e} on average, {figures.largest_error:.2e} at most"
    out.print(f"Embeddings of {of}: {error}", highlight=False, soft_wrap=True)


def _print_groups(title: str, costs: Sequence[LayerCost], key: Callable[[LayerCost], str]) -> None:
    whole = sum(cost.kl for cost in costs)
    groups: dict[tuple[str, int], list[LayerCost]] = {}
    for cost in costs:
        groups.setdefault((key(cost), cost.bits), []).append(cost)
    grid = table(title, "weight", "bits", "numbers", "KL, nats", "share", "KL for a million numbers")
    for (name, bits), members in sorted(groups.items(), key=lambda item: -_density(item[1]))[:MOST_ROWS]:
        kl, elements = sum(cost.kl for cost in members), sum(cost.elements for cost in members)
        share = f"{kl / whole:.1%}" if whole else ""
        grid.add_row(escape(name), f"{bits}", f"{elements:,}", f"{kl:.6f}", share, f"{_density(members):.6f}")
    out.print(grid)


def _density(costs: Iterable[LayerCost]) -> float:
    members = list(costs)
    return 1e6 * sum(cost.kl for cost in members) / sum(cost.elements for cost in members)


def _cells(figures: Figures) -> list[str]:
    perplexities = (figures.perplexity, figures.original_perplexity)
    return [
        f"{figures.positions:,}",
        f"{figures.kl:.5f} ± {figures.kl_error:.5f}",
        f"{figures.kl_99:.4f}",
        f"{figures.kl_largest:.3f}",
        f"{figures.top1_agreement:.2%}",
        *("" if value is None else f"{value:.4f}" if value < 1e5 else f"{value:.2e}" for value in perplexities),
    ]
