"""``hybridge chat``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridge.runtime.cli.options import (
    ArtifactArgument,
    CacheBytesOption,
    CacheDirOption,
    DraftOption,
    GrammarOption,
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
from hybridge.runtime.defaults import DEFAULT_BYTES

EXAMPLES = (
    "hybridge chat OUT",
    "hybridge chat OUT --system 'Answer in one sentence.' --temperature 0.7",
    "hybridge chat OUT --no-thinking --draft OUT2",
    "hybridge chat OUT --load talk.state",
)


def chat(
    artifact: ArtifactArgument,
    system: SystemOption = None,
    template_arg: TemplateArgOption = None,
    thinking: ThinkingOption = None,
    load: Annotated[Path | None, typer.Option("--load", help="Go on with a saved conversation.")] = None,
    max_new_tokens: NewTokensOption = 512,
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
    cache_bytes: CacheBytesOption = DEFAULT_BYTES,
    cache_dir: CacheDirOption = None,
    threads: ThreadsOption = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Remember what is typed at a terminal for the next chat.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Talk with a model: one line is one message; /help lists the commands. Answers go to stdout."""
    from hybridge.runtime.cli.chat import talk
    from hybridge.runtime.cli.generating import kept_checkpoints, open_model, template_variables
    from hybridge.runtime.cli.structure import constrain_of
    from hybridge.runtime.core.sampling import Sampling
    from hybridge.runtime.text.chat_template import load_template, taken_apart
    from hybridge.runtime.text.conversation import Conversation, Settings

    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    variables = template_variables(template_arg or ())
    model = open_model(artifact, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads)
    settings = Settings(
        drafter=model.drafter, sampling=sampling, stop=tuple(stop or ()), max_new_tokens=max_new_tokens,
        constrain=constrain_of(model, json_schema, regex, grammar), apart=taken_apart(model.artifact, model.tokenizer),
    )  # fmt: skip
    opening = [{"role": "system", "content": text} for text in system or ()]
    render = load_template(model.artifact, variables, thinking)
    with kept_checkpoints(model.session, cache_bytes, cache_dir) as checkpoints:
        conversation = Conversation(model.session, model.tokenizer, render, settings, opening, checkpoints)
        if load is not None:
            conversation.load(load)
        talk(conversation, opening, json=json, remember=history)
