"""``hybridge serve``"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridge.cache.errors import UsageError
from hybridge.export.cli.chat_template import load_template
from hybridge.export.cli.common import ArtifactArgument, app, err
from hybridge.export.cli.generating import (
    CacheBytesOption,
    DraftOption,
    LookupOption,
    MinPOption,
    Model,
    NewTokensOption,
    OwnDrafterOption,
    PlainOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    open_models,
)
from hybridge.export.cli.template_args import OURS, TemplateArgOption, template_variables
from hybridge.runtime.generation.sampling import Sampling
from hybridge.runtime.sessions.prefix_cache import DEFAULT_BYTES, PrefixCache

if TYPE_CHECKING:
    from hybridge.export.server.prompts import Render

KEY_VARIABLE = "HYBRIDGE_API_KEY"
LONGEST_KEY = 4096
MISSING = "hybridge serve needs starlette and uvicorn: pip install 'hybridge[serve]'."


@app.command()
def serve(
    artifact: ArtifactArgument,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; other machines reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 for any that is free.")] = 8080,
    name: Annotated[str | None, typer.Option("--name", help="The model's name for clients; the folder's if left out.")] = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, max=64, help="Conversations that take turns.")] = 4,
    queue: Annotated[int, typer.Option("--queue", min=0, help="Requests that may wait; others are refused with 429.")] = 32,
    cache_bytes: CacheBytesOption = DEFAULT_BYTES,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help=f"A file with the API key; else {KEY_VARIABLE} of the environment.")
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--cors-origin", help="A web page's origin that may ask; may be given several times.")
    ] = None,
    max_body_bytes: Annotated[int, typer.Option("--max-body-bytes", min=1, help="Largest body of a request.")] = 8 << 20,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that a request may take.")] = 600.0,
    template_arg: TemplateArgOption = None,
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
    try:
        from hybridge.export.server.app import Server, Settings
        from hybridge.export.server.guard import Limits
        from hybridge.export.server.job import Place
        from hybridge.export.server.listening import listen
    except ImportError:
        raise UsageError(MISSING) from None
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
    models = list(open_models(artifact, sessions, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads))
    places = [Place(model.session, model.drafter) for model in models]
    server = Server(places, models[0].tokenizer, renderer(models[0], variables), PrefixCache(cache_bytes), settings)
    gc.freeze()
    listen(server.app(), host, port, lambda url: err.print(f"{settings.name} answers at {url}/v1", highlight=False))


def renderer(model: Model, variables: Mapping[str, Any]) -> Render:
    """What renders conversations with a request's own variables of the chat template."""

    def render(messages: list[dict[str, Any]], own: Mapping[str, Any]) -> str:
        if taken := OURS & own.keys():
            raise UsageError(f"chat_template_kwargs: {min(taken)} is set by the conversation itself; leave it out.")
        return load_template(model.artifact, {**variables, **own})(messages)

    return render


def api_key(file: Path | None) -> str | None:
    """Read the API key from a file or the environment: a process list shows neither. Raises UsageError for none in the file."""
    if file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        with file.open(encoding="utf-8") as opened:
            key = opened.read(LONGEST_KEY).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} with the API key cannot be read ({error}); give a text file that holds it.") from None
    if not key:
        raise UsageError(f"{file} holds no API key; write one into it.")
    return key
