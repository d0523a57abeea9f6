"""``hybridge bench``: measure the gain of speculative decoding, the speed of a device, or the parts of a decode."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from hybridge.errors import UsageError, ValidationError
from hybridge.runtime.cli.console import check_writable_file, err, megabytes, out, print_json, table
from hybridge.runtime.cli.options import FindArtifact, HtmlOption, JsonOption, ThreadsOption

if TYPE_CHECKING:  # numpy and ExecuTorch's exporter take long to start: they are imported when the command runs
    from hybridge.export.cli.figures import Subject
    from hybridge.export.profile.device import DeviceReport
    from hybridge.export.profile.parts import Profile
    from hybridge.runtime.binding.drafters import Drafter
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.measure import Outcome

EXAMPLES = (
    "hybridge bench",
    "hybridge bench OUT --draft OUT2 --html speeds.html",
    "hybridge bench OUT --profile --threads 1",
    "hybridge bench OUT --device",
    "hybridge bench OUT --write-threshold",
)
PROMPTS = 40
"""Texts to continue."""
DRAFTER_NAMES = {
    "mtp": "multi-token prediction",
    "dflash": "DFlash",
    "dflash2": "DFlash 2",
    "dspark": "DSpark",
    "eagle3": "EAGLE-3",
    "gemma4_assistant": "Gemma 4's assistant",
}
PROFILED = ("decode", "verify", "prefill")
"""Methods whose parts are timed."""
ROUNDS = 21
"""Calls of each method, of which the median counts."""


def bench(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]",
            help="An artifact, a GGUF file, a checkpoint's folder, or a model's name on the hub. Left out, the embedded models "
            "are exported and measured.",
        ),
    ] = None,
    *,
    find: FindArtifact,
    draft: Annotated[Path | None, typer.Option("--draft", metavar="MODEL", help="A draft model.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate and compare, over all drafters.")] = 100_000,
    samples: Annotated[int, typer.Option(min=300, help="Tokens to draw for each test of the sampling.")] = 200_000,
    threads: ThreadsOption = None,
    profiled: Annotated[
        bool, typer.Option("--profile", help="Instead, where a decode, a verify and a prefill spend their time.")
    ] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Instead, how fast this device is, as a row for the table of devices in docs/.")
    ] = False,
    threshold: Annotated[
        bool,
        typer.Option(
            "--write-threshold",
            help="Instead, from how many tokens on the artifact's accelerator (--delegate) reads prompts faster than the CPU: "
            "written to its manifest.",
        ),
    ] = False,
    context: Annotated[
        int, typer.Option(min=1, help="Number of tokens in the text before what is measured, for --profile and --device.")
    ] = 128,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Measure what speculative decoding brings, interleaved with plain decoding, and check that it changes no text."""
    if profiled + device + threshold > 1:
        raise UsageError("--profile, --device and --write-threshold exclude each other; give one of them.")
    if html is not None and (profiled or device or threshold):
        raise UsageError("--html is for the speeds of generating; leave --profile, --device and --write-threshold out.")
    if html is not None:
        from hybridge.runtime.html_report import check_matplotlib

        check_writable_file(html)
        check_matplotlib("--html")
    if model is None and draft is not None:
        raise UsageError("--draft needs the target before it; leave both out for the embedded models.")
    if model is None and (profiled or threshold):
        name = "--profile" if profiled else "--write-threshold"
        raise UsageError(f"{name} needs a model: hybridge bench OUT {name}.")
    if profiled and model is not None:
        profile_parts(find(model), threads, context, json=json)
        return
    from hybridge.runtime.binding.library import set_threads

    with exported(*(path if path is None else find(path) for path in (model, draft))) as artifacts:
        if threads is not None:
            set_threads(threads)
        if threshold:
            bench_threshold(artifacts.target, json=json)
        elif device:
            bench_device(artifacts.target, context, json=json)
        else:
            bench_speculation(artifacts, tokens, samples, html, json=json)


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of a target, of its draft model, and of the same target with another drafter inside."""

    target: Path
    draft: Path | None = None
    other: Path | None = None


@contextmanager
def exported(artifact: Path | None, draft: Path | None) -> Iterator[Artifacts]:
    """Yield the artifacts to measure: the given ones, or those of the embedded models, which are deleted at the end."""
    from hybridge.export.cli.embedded import export_embedded

    if artifact is not None:
        yield Artifacts(artifact, draft)
        return
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as scratch:
        made = Artifacts(*(Path(scratch) / name for name in ("target", "draft", "dspark")))
        export_embedded(made.target, made.draft, made.other)
        yield made


def bench_speculation(artifacts: Artifacts, tokens: int, samples: int, html: Path | None, *, json: bool) -> None:
    """Measure and show the gain of speculative decoding. Raises ValidationError if it changed the text."""
    from hybridge.export.cli.figures import measure, print_figures
    from hybridge.export.cli.progress import ConsoleProgress

    memory = memory_use(artifacts.target) if html is not None else None
    subject = load(artifacts)
    gc.freeze()  # the collector need not scan what is loaded between two tokens
    with ConsoleProgress(err).counted("Measuring") as notify:
        report = measure(subject, tokens, samples, notify)
    if html is not None:
        from hybridge.runtime.html_report import Speed, speed_sections, write_page
        from hybridge.runtime.measure import PLAIN

        speeds = {
            text: {name: Speed(way.tokens_per_second, way.times(ways[PLAIN]), way.total) for name, way in ways.items()}
            for text, ways in report.outcomes.items()
        }
        rows = [(figure.what, figure.target, figure.measured, figure.reached) for figure in report.figures()]
        write_page(html, artifacts.target.resolve().name, speed_sections(speeds, rows, memory))
    if json:
        print_json(report.to_dict())
    else:
        for title, outcomes in report.outcomes.items():
            print_outcomes(title, outcomes)
        print_figures(report.figures())
    if not report.lossless:
        raise ValidationError("speculation changed the text; see the figures above.")


def memory_use(target: Path) -> tuple[float, float] | None:
    """Return the bytes that a decode of a .pte moves, and the bytes that memory moves in a second; None for other formats."""
    from hybridge.export.profile.device import decode_bytes
    from hybridge.export.profile.parts import Bandwidth
    from hybridge.runtime.artifact.folder import open_artifact

    artifact = open_artifact(target)
    if artifact.manifest.options.format != "pte":
        return None
    return decode_bytes(artifact, context=0), Bandwidth().measure(times=5)


def load(artifacts: Artifacts) -> Subject:
    """Open the sessions of a target and of its drafters."""
    from hybridge.export.cli.embedded import code_prompts
    from hybridge.export.cli.figures import AUTO, Subject
    from hybridge.runtime.artifact.folder import open_artifact
    from hybridge.runtime.binding.drafters import AutoDrafter, DraftModel, PromptLookup
    from hybridge.runtime.binding.session import Session
    from hybridge.runtime.binding.tokenizer import Tokenizer
    from hybridge.runtime.measure import PLAIN

    opened, draft = open_artifact(artifacts.target), artifacts.draft
    if opened.tokenizer is None:
        raise UsageError(
            f"{artifacts.target} has no tokenizer.json to read code with, which is what is generated; export with one."
        )
    session = Session.of(opened)
    ways: dict[str, Drafter | None] = {PLAIN: None, "prompt lookup": PromptLookup()}
    if draft is not None:
        ways["draft model"] = DraftModel.load(draft, opened, session)
    ways |= own_drafter(session)
    small = ways.get("draft model")
    ways[AUTO] = AutoDrafter(session, small if isinstance(small, DraftModel) else None)
    other = Session.load(artifacts.other) if artifacts.other is not None else None
    more = own_drafter(other) if other is not None else {}
    sessions = dict.fromkeys(more, other) if other is not None else {}
    prompts = code_prompts(Tokenizer.of(opened), PROMPTS)
    return Subject(session=session, ways=ways | more, sessions=sessions, prompts=prompts, draft=draft)


def own_drafter(session: Session) -> dict[str, Drafter]:
    """Return the drafter inside an artifact, if it has one, by its name."""
    from hybridge.runtime.binding.drafters import OwnDrafter

    description = session.manifest.drafter
    return {} if description is None else {DRAFTER_NAMES.get(description.kind, description.kind): OwnDrafter(session)}


def print_outcomes(title: str, outcomes: Mapping[str, Outcome]) -> None:
    """Print a row for each drafter; draft, verify and commit are shares of its time."""
    from hybridge.runtime.measure import PLAIN

    columns = ("tokens/s", "× plain", "accepted", "tokens a block", "rollbacks", "decodes", "draft", "verify", "commit")
    grid = table(title, "", *columns)
    for name, outcome in outcomes.items():
        total = outcome.total
        grid.add_row(
            name,
            f"{outcome.tokens_per_second:.0f}",
            f"{outcome.times(outcomes[PLAIN]):.2f}",
            f"{total.acceptance_rate:.0%}",
            f"{total.mean_accepted_length:.1f}",
            f"{total.rollbacks}",
            f"{total.decodes}",
            *(f"{each / total.new_seconds:.0%}" for each in (total.draft_seconds, total.verify_seconds, total.commit_seconds)),
        )
    out.print(grid)


# ``hybridge bench OUT --device``


def bench_device(artifact: Path, context: int, *, json: bool) -> None:
    """Measure and show the speed of this device with an artifact."""
    from hybridge.export.profile.device import measure_device
    from hybridge.runtime.artifact.folder import open_artifact

    with err.status("Measuring decode, verify, commit, prefill and memory"):
        report = measure_device(open_artifact(artifact), context)
    if json:
        print_json(report.to_dict())
        return
    show_device(report)
    out.print("\nFor the table in docs/benchmarks.md:", highlight=False)
    out.print(report.row(), highlight=False, soft_wrap=True, markup=False)


def show_device(report: DeviceReport) -> None:
    """Print the measurements, with the device's processor and kernels."""
    sets = f"{report.instruction_set}, of {', '.join(report.instruction_sets)}" if report.instruction_set else report.kernels
    grid = table(f"{report.processor}, {report.cores} cores: {sets}; {report.threads} threads", "", "ms", "tokens/s", "decodes")
    decode = report.decode_milliseconds
    for name, tokens, milliseconds in (
        ("decode", 1, decode),
        (f"verify of {report.verify_len}", report.verify_len, report.verify_milliseconds),
        (f"commit of {max(1, report.verify_len // 2)}", 0, report.commit_milliseconds),
    ):
        speed = f"{1e3 * tokens / milliseconds:.1f}" if tokens else ""
        grid.add_row(name, f"{milliseconds:.3f}", speed, f"{milliseconds / decode:.2f}")
    grid.add_row("prefill", "", f"{report.prefill_tokens_per_second:.1f}", "")
    out.print(grid)
    out.print(
        f"A decode after {report.context} tokens moves {report.decode_bytes / 1e6:.1f} MB, {report.share_of_bandwidth:.0%} of "
        f"what memory gives ({report.bandwidth / 1e9:.1f} GB/s).",
        highlight=False,
    )


# ``hybridge bench OUT --write-threshold``


def bench_threshold(folder: Path, *, json: bool) -> None:
    """Measure, show and write from how many tokens on an artifact's accelerator reads prompts."""
    from hybridge.export.profile.threshold import measure_prompts, threshold, write_threshold
    from hybridge.runtime.artifact.folder import open_artifact
    from hybridge.runtime.artifact.options import NEVER

    artifact = open_artifact(folder)
    with err.status("Reading prompts by the accelerator and by the CPU"):
        measured = measure_prompts(artifact)
    tokens = threshold(measured)
    write_threshold(artifact, tokens)
    if json:
        print_json({"delegate_from": tokens, "prompts": [asdict(each) for each in measured]})
        return
    options = artifact.manifest.options
    name = f"{options.delegate}:{options.delegate_device}"
    grid = table("Seconds of a prompt", "tokens", name, "CPU", "× CPU")
    for each in measured:
        grid.add_row(f"{each.tokens}", f"{each.delegate:.3f}", f"{each.cpu:.3f}", f"{each.cpu / each.delegate:.2f}")
    out.print(grid)
    when = "no prompts any more: it was slower" if tokens == NEVER else f"prompts from {tokens} tokens on"
    out.print(f"{name} reads {when}. This is in the manifest now.", highlight=False)


# ``hybridge bench OUT --profile``


def profile_parts(artifact: Path, threads: int | None, context: int, *, json: bool) -> None:
    """Time and show the parts of a decode, a verify and a prefill."""
    from hybridge.export.profile.parts import profile
    from hybridge.runtime.artifact.folder import open_artifact
    from hybridge.runtime.binding.library import set_threads

    opened = open_artifact(artifact)
    if opened.manifest.options.format != "pte":
        raise UsageError(
            f"{artifact} is for onnxruntime, and --profile takes ExecuTorch's programs apart; "
            "profile a .pte of the same model, or use onnxruntime's own profiler."
        )
    if threads is not None:
        set_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    with err.status("Timing the parts of a decode, a verify and a prefill"):
        profiles = profile(opened, PROFILED, context, ROUNDS, clock)
    if json:
        print_json([each.to_dict() for each in profiles])
        return
    for each in profiles:
        out.print(_grid(each))
        out.print(
            f"The parts add up to {each.sum:.2f} ms, {each.sum / each.milliseconds:.0%} of the whole. "
            f"Memory reads {each.bandwidth / 1e9:.1f} GB/s here.\n",
            highlight=False,
        )


def _grid(profile: Profile) -> Table:
    """Return a table with a row for each part, the slowest first."""
    grid = table(
        f"A {profile.method} after {profile.context} tokens", "", "calls", "ms", "of the time", "moves", "of the limit"
    )
    for part in profile.parts:
        share = part.milliseconds / profile.milliseconds
        limit = part.share_of_limit(profile.bandwidth)
        grid.add_row(
            part.name, f"{part.calls}", f"{part.milliseconds:.3f}", f"{share:.1%}", megabytes(part.bytes), f"{limit:.0%}"
        )
    limit = profile.bytes / profile.bandwidth / profile.milliseconds * 1e3
    grid.add_section()
    calls = sum(part.calls for part in profile.parts)
    grid.add_row("the whole", f"{calls}", f"{profile.milliseconds:.3f}", "", megabytes(profile.bytes), f"{limit:.0%}")
    return grid
