"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ArtifactArgument = Annotated[Path, typer.Argument(help="An exported artifact: the folder that 'hybridge export' wrote.")]
AgainstOption = Annotated[str, typer.Option("--against", help="The checkpoint that it was exported from.")]
ReportOption = Annotated[Path | None, typer.Option("--report", help="Also write the report to this file, as JSON.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="Write the result to this file, as a page for a browser.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]

# Drafters

DraftOption = Annotated[Path | None, typer.Option("--draft", help="Draft with this model, an artifact too.")]
LookupOption = Annotated[bool, typer.Option("--prompt-lookup", help="Draft from what the text has already (the default).")]
OwnDrafterOption = Annotated[
    bool, typer.Option("--drafter", "--mtp", help="Draft with the artifact's own drafter, if it was exported with one.")
]
PlainOption = Annotated[bool, typer.Option("--no-speculation", help="Decode plainly, without a drafter.")]

# Generation

NewTokensOption = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Stop after this many tokens.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopKOption = Annotated[int, typer.Option("--top-k", help="Draw from the k best tokens only; 0 for all.")]
TopPOption = Annotated[float, typer.Option("--top-p", help="Draw from the fewest tokens that have this probability together.")]
MinPOption = Annotated[float, typer.Option("--min-p", help="Drop tokens below this share of the best one's probability.")]
PenaltyOption = Annotated[float, typer.Option("--repetition-penalty", help="Above 1: tokens that were there become rarer.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Of the sampling; drawn if left out.")]
StopOption = Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be given several times.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="To compute on; one for each fast core if left out.")
]
JsonSchemaOption = Annotated[
    Path | None,
    typer.Option("--json-schema", help="A file with a JSON schema: the text is JSON that fits it, and nothing else."),
]
RegexOption = Annotated[str | None, typer.Option("--regex", help="The text matches this regular expression as a whole.")]
GrammarOption = Annotated[
    Path | None, typer.Option("--grammar", help="A file with a grammar in llguidance's form of Lark: the text follows it.")
]
CacheBytesOption = Annotated[
    int,
    typer.Option("--cache-bytes", min=0, help="Memory for checkpoints of what was read, to which going back is instant."),
]

CacheDirOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Keep the checkpoints in this folder too, of the same size, for the next time."),
]

# The chat template

SystemOption = Annotated[
    list[str] | None,
    typer.Option("--system", help="What the model is told before the conversation; may be given several times."),
]
ThinkingOption = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking", help="Switch thinking on or off, where the chat template can; else as it does by itself."
    ),
]
TEMPLATE_ARG = "--template-arg"
TemplateArgOption = Annotated[
    list[str] | None,
    typer.Option(
        TEMPLATE_ARG,
        metavar="NAME=VALUE",
        help="A variable of the chat template, such as enable_thinking=false or tools=[…]; VALUE is JSON, else a text. "
        "May be given several times.",
    ),
]
