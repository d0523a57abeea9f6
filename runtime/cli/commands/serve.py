"""``hybridge serve``"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from hybridge.runtime.cli.console import err
from hybridge.runtime.cli.options import (
    ArtifactArgument,
    CacheBytesOption,
    CacheDirOption,
    DraftOption,
    LookupOption,
    MinPOption,
    NewTokensOption,
    OwnDrafterOption,
    PlainOption,
    TemperatureOption,
    TemplateArgOption,
    ThinkingOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
)
from hybridge.runtime.defaults import DEFAULT_BYTES

KEY_VARIABLE = "HYBRIDGE_API_KEY"
EXAMPLES = (
    "hybridge serve OUT",
    "hybridge serve OUT --host 0.0.0.0 --port 8000 --api-key-file key.txt --draft OUT2",
)


def serve(
    artifact: ArtifactArgument,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; other machines reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 for any that is free.")] = 8080,
    name: Annotated[str | None, typer.Option("--name", help="The model's name for clients; the folder's if left out.")] = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, max=64, help="Conversations that take turns.")] = 4,
    queue: Annotated[int, typer.Option("--queue", min=0, help="Requests that may wait; others are refused with 429.")] = 32,
    cache_bytes: CacheBytesOption = DEFAULT_BYTES,
    cache_dir: CacheDirOption = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help=f"A file with the API key; else {KEY_VARIABLE} of the environment.")
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--cors-origin", help="A web page's origin that may ask; may be given several times.")
    ] = None,
    max_body_bytes: Annotated[int, typer.Option("--max-body-bytes", min=1, help="Largest body of a request.")] = 8 << 20,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that a request may take.")] = 600.0,
    template_arg: TemplateArgOption = None,
    thinking: ThinkingOption = None,
    max_new_tokens: NewTokensOption = 512,
    draft: DraftOption = None,
    lookup: LookupOption = False,
    own: OwnDrafterOption = False,
    plain: PlainOption = False,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    threads: ThreadsOption = None,
) -> None:
    """Answer requests of OpenAI's API over one model; sampling options hold where a request says nothing."""
    from hybridge.runtime.cli.generating import kept_checkpoints, open_models, template_variables
    from hybridge.runtime.cli.serve import api_key, renderer
    from hybridge.runtime.core.sampling import Sampling
    from hybridge.runtime.server.app import Server, listen
    from hybridge.runtime.server.connections import Limits
    from hybridge.runtime.server.worker import Place, Settings
    from hybridge.runtime.text.chat_template import answer_format_of

    settings = Settings(
        name=name or artifact.resolve().name,
        host=host,
        key=api_key(api_key_file),
        origins=origin or (),
        sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
        queue=queue,
        limits=Limits(body=max_body_bytes, seconds=timeout, new_tokens=max_new_tokens),
    )
    variables = template_variables(template_arg or ())
    models = open_models(artifact, sessions, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads)
    places = [Place(model.session, model.drafter) for model in models]
    render = renderer(models[0].artifact, variables, thinking)
    form = answer_format_of(models[0].artifact, models[0].tokenizer)
    with kept_checkpoints(models[0].session, cache_bytes, cache_dir) as cache:
        server = Server(places, models[0].tokenizer, render, cache, settings, form)
        gc.freeze()
        listen(server.app(), host, port, lambda url: err.print(f"{settings.name} answers at {url}/v1", highlight=False))
