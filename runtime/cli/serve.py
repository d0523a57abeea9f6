"""``hybridge serve``: OpenAI's API over one model."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridge.errors import TemplateError, UsageError
from hybridge.runtime.cli.console import err, note_unused_delegate
from hybridge.runtime.cli.options import (
    CacheOptions,
    ContextOption,
    DrafterOptions,
    FindArtifact,
    ModelArgument,
    NewTokensOption,
    SamplingOptions,
    TemplateOptions,
    ThreadsOption,
    with_options,
)

if TYPE_CHECKING:  # numpy takes long to start: it is imported when the command runs
    from hybridge.runtime.binding.jinja import JinjaTemplate

KEY_VARIABLE = "HYBRIDGE_API_KEY"
LONGEST_KEY = 4096
LARGEST_TEMPLATE = 1 << 20
EXAMPLES = (
    "hybridge serve model-Q4_K_M.gguf",
    "hybridge serve OUT",
    "hybridge serve OUT --host 0.0.0.0 --port 8000 --api-key-file key.txt --draft OUT2",
)


@with_options
def serve(
    model: ModelArgument,
    *,
    find: FindArtifact,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; other machines reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 8080,
    name: Annotated[str | None, typer.Option("--name", help="The model's name for clients; MODEL's own if left out.")] = None,
    sessions: Annotated[
        int, typer.Option("--sessions", min=1, max=64, help="Number of conversations that are answered in turns.")
    ] = 4,
    queue: Annotated[int, typer.Option("--queue", min=0, help="Requests that may wait; others are refused with 429.")] = 32,
    cache: CacheOptions,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help=f"A file with the API key; else {KEY_VARIABLE} of the environment.")
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--cors-origin", help="A web page's origin that may ask; may be given several times.")
    ] = None,
    allow_remote_images: Annotated[
        bool, typer.Option("--allow-remote-images", help="Fetch pictures from http:// and https:// addresses of public hosts.")
    ] = False,
    template_file: Annotated[
        Path | None, typer.Option("--chat-template", metavar="FILE", help="A Jinja template in place of the artifact's own.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse unknown fields of requests instead of ignoring them.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show prompts on stderr, too.")] = False,
    max_body_bytes: Annotated[int, typer.Option("--max-body-bytes", min=1, help="Largest body of a request.")] = 8 << 20,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that a request may take.")] = 600.0,
    template: TemplateOptions,
    max_new_tokens: NewTokensOption = None,
    drafter: DrafterOptions,
    sampling: SamplingOptions,
    context: ContextOption = None,
    threads: ThreadsOption = None,
) -> None:
    """Answer requests of OpenAI's API with one model. Sampling options are defaults for requests without them."""
    from hybridge.runtime.binding.jinja import JinjaTemplate
    from hybridge.runtime.server.app import Server, ServerSettings
    from hybridge.runtime.server.connections import LOOPBACK, Limits, listen
    from hybridge.runtime.server.remote_pictures import RemotePictures
    from hybridge.runtime.server.worker import SessionSlot
    from hybridge.runtime.text.answers import AnswerFormat
    from hybridge.runtime.text.chat_template import ChatTemplate
    from hybridge.runtime.text.generate import kept_checkpoints, open_text_models

    changes, key = sampling.sampling(), api_key(api_key_file)
    given = template_of(template_file) if template_file is not None else None
    settings = ServerSettings(
        name=name or model.resolve().name.removesuffix(".gguf"), host=host, key=key, origins=origin or (), queue=queue,
        strict=strict, verbose=verbose, tell=tell,
        limits=Limits(body=max_body_bytes, seconds=timeout, new_tokens=max_new_tokens),
    )  # fmt: skip
    variables = template.variables()
    models = open_text_models(
        find(model), sessions, threads=threads, context=context, strict_reuse=cache.strict_reuse, **vars(drafter.found(find))
    )
    note_unused_delegate(models[0].session)
    settings = replace(settings, sampling=changes.of(models[0]))
    if key is None and host not in LOOPBACK:
        err.print(
            f"[yellow]Anybody who reaches {host} can use this model:[/] set a key in {KEY_VARIABLE} or by --api-key-file."
        )
    slots = [SessionSlot(model.session, model.drafter) for model in models]
    opened, tokenizer = models[0].artifact, models[0].tokenizer
    jinja = given or JinjaTemplate(opened.folder)
    form = AnswerFormat.find(jinja, tokenizer)
    chat_template = ChatTemplate(jinja, variables, template.thinking, form=form)
    described = jinja.description
    settings = replace(settings, thinking_switch=described.thinking_switch, chat_template=described.sources)
    with kept_checkpoints(models[0].session, cache.cache_bytes, cache.cache_dir) as checkpoints:
        pictures = models[0].pictures if opened.manifest.pictures is not None else None
        remote = RemotePictures(max_body_bytes) if allow_remote_images else None
        server = Server(slots, tokenizer, chat_template.render, checkpoints, settings, form, pictures, remote)
        gc.freeze()
        listen(server.app(), host, port, lambda url: tell(f"{settings.name} answers at {url}/v1; talk to it at {url}"))


def tell(line: str) -> None:
    """Show a line on stderr as it is."""
    err.print(line, markup=False, highlight=False, soft_wrap=True)


def template_of(file: Path) -> JinjaTemplate:
    """Return the chat template in a file. Raises UsageError."""
    from hybridge.runtime.binding.jinja import JinjaTemplate
    from hybridge.runtime.files import read_regular

    try:
        return JinjaTemplate(read_regular(file, LARGEST_TEMPLATE).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read as a chat template: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is no chat template: it is not UTF-8; give a text file in Jinja's form.") from None
    except TemplateError as error:
        raise UsageError(f"{file}: {error}") from None


def api_key(file: Path | None) -> str | None:
    """Read the API key from a file or the environment, which no list of processes shows. Raises UsageError for a bad file."""
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
