"""``hybridge bench``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridge.cache.errors import UsageError
from hybridge.runtime.cli.console import check_writable_file
from hybridge.runtime.cli.options import HtmlOption, JsonOption, ThreadsOption

EXAMPLES = (
    "hybridge bench",
    "hybridge bench OUT --draft OUT2 --html speeds.html",
    "hybridge bench OUT --profile --threads 1",
    "hybridge bench OUT --device",
)


def bench(
    artifact: Annotated[
        Path | None, typer.Argument(help="An exported artifact; left out, the embedded models are exported and measured.")
    ] = None,
    draft: Annotated[Path | None, typer.Option("--draft", help="The artifact of a draft model.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate and compare, over all drafters.")] = 100_000,
    samples: Annotated[int, typer.Option(min=300, help="Tokens to draw for each test of the sampling.")] = 200_000,
    threads: ThreadsOption = None,
    profiled: Annotated[
        bool, typer.Option("--profile", help="Instead, where a decode, a verify and a prefill spend their time.")
    ] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Instead, how fast this device is, as a row for the table of devices in docs/.")
    ] = False,
    context: Annotated[int, typer.Option(min=1, help="Tokens before them, for --profile and --device.")] = 128,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Measure what speculative decoding brings, interleaved with plain decoding, and check that it changes no text."""
    if profiled and device:
        raise UsageError("--profile and --device exclude each other; give one of them.")
    if html is not None and (profiled or device):
        raise UsageError("--html is for the speeds of generating; leave --profile and --device out.")
    if html is not None:
        from hybridge.runtime.html_report import check_matplotlib

        check_writable_file(html)
        check_matplotlib("--html")
    if profiled and artifact is None:
        raise UsageError("--profile needs an artifact: hybridge bench OUT --profile.")
    if artifact is None and draft is not None:
        raise UsageError("--draft needs the target's artifact before it; leave both out for the embedded models.")
    if profiled and artifact is not None:
        from hybridge.export.cli.bench import profile_parts

        profile_parts(artifact, threads, context, json=json)
        return
    from hybridge.export.cli.bench import bench_device, bench_speculation, exported
    from hybridge.runtime.core.library import set_threads

    with exported(artifact, draft) as artifacts:
        if threads is not None:
            set_threads(threads)
        if device:
            bench_device(artifacts.target, context, json=json)
        else:
            bench_speculation(artifacts, tokens, samples, html, json=json)
