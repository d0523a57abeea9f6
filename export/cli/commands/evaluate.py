"""``hybridge evaluate``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridge.runtime.cli.console import check_writable_file, err, out, print_json, write_json
from hybridge.runtime.cli.options import AgainstOption, ArtifactArgument, JsonOption, ReportOption

EXAMPLES = (
    "hybridge evaluate OUT --against CHECKPOINT",
    "hybridge evaluate OUT --against CHECKPOINT --text novel.txt --tokens 20000",
    "hybridge evaluate OUT --against CHECKPOINT --layers --plot kl.svg",
)


def evaluate(
    artifact: ArtifactArgument,
    against: AgainstOption,
    text: Annotated[Path | None, typer.Option("--text", help="A file of text, to be cut into windows.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="A file with a prompt on each line, which the artifact answers first.")
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
    from hybridge.export.cli.evaluate import print_comparison, print_costs
    from hybridge.export.cli.steps import ConsoleProgress
    from hybridge.export.source.checkpoint import resolve_checkpoint

    texts = Texts(text=text, prompts=prompts, window=window, tokens=tokens, seed=seed)
    result = compare(artifact, resolve_checkpoint(against), texts, ConsoleProgress(err), layers=layers)
    if plot is not None:
        plot_divergence([vars(each) for each in result.comparison.ranges if each.positions], plot)
    if report is not None:
        write_json(report, result.to_dict())
    if json:
        print_json(result.to_dict())
    else:
        print_comparison(result.comparison, out)
        if result.layers is not None:
            print_costs(result.layers, out)
