"""``hybridge run``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridge.runtime.cli.console import check_writable_file
from hybridge.runtime.cli.options import (
    ArtifactArgument,
    DraftOption,
    GrammarOption,
    HtmlOption,
    JsonOption,
    JsonSchemaOption,
    LookupOption,
    MinPOption,
    NewTokensOption,
    OwnDrafterOption,
    PenaltyOption,
    PlainOption,
    RegexOption,
    SeedOption,
    StopOption,
    SystemOption,
    TemperatureOption,
    TemplateArgOption,
    ThinkingOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
)

EXAMPLES = (
    "hybridge run OUT --prompt 'The capital of France is' --stats",
    "hybridge run OUT --prompt 'def main(' --html rounds.html",
    "hybridge run OUT --prompt 'def main(' --draft OUT2 --max-new-tokens 256",
    "hybridge run OUT --prompt 'A point: ' --json-schema point.json",
    "hybridge run OUT --prompt 'What is 2 + 2?' --system 'Answer in one word.' --no-thinking",
    "hybridge run OUT --chat --prompt - < question.txt",
    "hybridge run OUT --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95 --seed 1",
)


def run(
    artifact: ArtifactArgument,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text to continue; - reads it from stdin.")] = None,
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="A file with the text; - is stdin.")] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The text is a message: the chat template goes around it. The next three imply it."),
    ] = False,
    system: SystemOption = None,
    template_arg: TemplateArgOption = None,
    thinking: ThinkingOption = None,
    max_new_tokens: NewTokensOption = 128,
    draft: DraftOption = None,
    lookup: LookupOption = False,
    own: OwnDrafterOption = False,
    plain: PlainOption = False,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    repetition_penalty: PenaltyOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    json_schema: JsonSchemaOption = None,
    regex: RegexOption = None,
    grammar: GrammarOption = None,
    threads: ThreadsOption = None,
    stats: Annotated[bool, typer.Option("--stats", help="Say on stderr what was accepted and how fast it was.")] = False,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Continue a text by speculative decoding; greedy output is the same with every drafter and without."""
    if html is not None:
        from hybridge.runtime.html_report import check_matplotlib

        check_writable_file(html)
        check_matplotlib("--html")
    from hybridge.runtime.cli.generating import as_message, as_text, open_model, read_prompt, template_variables
    from hybridge.runtime.cli.run import continue_text
    from hybridge.runtime.core.sampling import Sampling

    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    text, variables = read_prompt(prompt, prompt_file), template_variables(template_arg or ())
    model = open_model(artifact, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads)
    constrain = None
    if json_schema is not None or regex is not None or grammar is not None:
        from hybridge.runtime.cli.structure import constrain_of  # llguidance is an extra

        constrain = constrain_of(model, json_schema, regex, grammar)
    if chat or system or variables or thinking is not None:
        from hybridge.runtime.text.chat_template import load_template

        asked = as_message(model.tokenizer, text, system or (), load_template(model.artifact, variables, thinking))
    else:
        asked = as_text(model.tokenizer, text)
    continue_text(model, asked, max_new_tokens, sampling, stop or (), constrain, stats=stats, html=html, json=json)
