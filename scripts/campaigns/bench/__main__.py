"""Measure hybridge beside what users would pick instead: one run, interleaved, medians and ratios."""

import argparse
import os
import platform
import sys
from pathlib import Path

from campaigns import ROOT, campaign
from campaigns.bench import peers, prepare, results, speculation
from campaigns.bench.drafter_shapes import DRAFTERS
from campaigns.bench.driver import Bandwidth, Contestant, Limits, measure_group
from campaigns.bench.results import GROUPS, VARIANTS, Row, Run, Variant
from campaigns.bench.shapes import SHAPES, sizes_of, write_checkpoint
from hybridge.runtime.platforms import processor_name

NAMES = [variant.name for variant in VARIANTS]


def numbers(text: str) -> list[int]:
    """1,2"""
    return [int(part) for part in text.split(",")]


def shares(text: str) -> list[float]:
    """0.5,0.9"""
    return [float(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    """Parse the arguments."""
    parser = campaign.parser("bench", __doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--shapes", default="qwen3.5-0.8b,lfm2-350m,granite-4-h-350m,embedded", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--contexts", type=numbers, default="128,2048,16384", help="tokens before a decode")
    parser.add_argument("--threads", type=numbers, default="1,2", help="numbers of threads")
    parser.add_argument("--groups", default=",".join(GROUPS), help="precisions; each is a run of its own for its engines")
    parser.add_argument("--only", help=f"engines with commas between: {', '.join(NAMES).replace('%', '%%')}")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each engine for each figure")
    parser.add_argument("--export-limit", type=float, default=1500, help="seconds for one export")
    parser.add_argument("--keep-artifacts", action="store_true", help="use artifacts of other code than this, too")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "hybridge-bench", help="for all large files")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "bench", help="for tables and raw times")
    isas = sorted(peers.INSTRUCTION_SETS)[1:]
    text = "let hybridge's kernels and llama.cpp, compiled for it, use this; else each what the machine has"
    parser.add_argument("--isa", choices=isas, default="", help=text)
    drafted = ",".join(DRAFTERS)
    text = "instead, speed by acceptance of drafters of published shapes, for these targets"
    parser.add_argument("--speculation", nargs="?", const=drafted, metavar="SHAPES", help=f"{text} (of {drafted})")
    parser.add_argument("--drafters", help="of these kinds alone, for --speculation; llama.cpp is then left out")
    known = ",".join(map(str, speculation.SHARES))
    parser.add_argument("--acceptances", type=shares, default=known, help="chances that a draft token is right")
    parser.add_argument("--install-peers", action="store_true", help="install llama.cpp for this, and stop")
    parser.add_argument("--tables-only", action="store_true", help="tables again from the raw times in --output")
    return parser.parse_args()


def main() -> None:
    """Measure shape after shape, group after group; what is measured is kept, so that an interrupted run loses little."""
    options = arguments()
    options.work, options.output = options.work.resolve(), options.output.resolve()  # engines run in other folders
    options.work.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.install_peers:
        peers.install(options.work, options.isa)
        return
    if options.isa:
        os.environ["HYBRIDGE_ISA"] = options.isa  # for the engines' processes
    if options.speculation:
        speculate(options)
        return
    raw = options.output / "raw.json"
    if options.tables_only:
        publish(results.read(raw), options)
        return
    chosen = select(options)
    kept = results.read(raw) if raw.exists() else []
    for name in options.shapes.split(","):
        for group in dict.fromkeys(variant.group for variant in chosen):
            run = measure(name, [variant for variant in chosen if variant.group == group], options)
            kept = results.merged(kept, run)
            results.save(kept, raw)
        publish(kept, options)


def speculate(options: argparse.Namespace) -> None:
    """Measure drafters target after target, and print tables."""
    raw = options.output / "speculation.json"
    if unknown := [name for name in options.speculation.split(",") if name not in DRAFTERS]:
        print(f"there is no shape {unknown[0]!r} with drafters; choose of: {', '.join(DRAFTERS)}", file=sys.stderr)
        raise SystemExit(2)
    for name in options.speculation.split(",") if not options.tables_only else ():
        curves = speculation.measure(name, options, say)
        if options.drafters is None:
            curves += speculation.measure_llama(name, options, say)
        speculation.save(curves, raw)
    print(speculation.table(speculation.read(raw)))


def select(options: argparse.Namespace) -> list[Variant]:
    """Return the variants to run. Exits with 2 for a name that does not exist."""
    wanted = options.only.split(",") if options.only else NAMES
    for kind, asked, known in (("shape", options.shapes.split(","), list(SHAPES)), ("engine", wanted, NAMES)):
        if unknown := [name for name in asked if name not in known]:
            print(f"there is no {kind} {unknown[0]!r}; choose of: {', '.join(known)}", file=sys.stderr)
            raise SystemExit(2)
    return [variant for variant in VARIANTS if variant.name in wanted and variant.group in options.groups.split(",")]


def measure(name: str, group: list[Variant], options: argparse.Namespace) -> Run:
    """One shape with the engines of one group."""
    folder = options.work / name
    folder.mkdir(exist_ok=True)
    context = max(options.contexts)
    place = prepare.Workplace(options.work, folder, context, options.export_limit, options.keep_artifacts, options.isa)
    write_checkpoint(SHAPES[name], place.checkpoint)
    run = Run(shape=name, contexts=options.contexts, threads=options.threads, machine=machine(options.isa))
    run.checkpoint_bytes = sum(path.stat().st_size for path in place.checkpoint.glob("*.safetensors"))
    contestants = start(run, group, place)
    try:
        measure_group(run, contestants, Bandwidth(), Limits(options.rounds), say)
    finally:
        for contestant in contestants:
            contestant.client.close()
    return run


def start(run: Run, chosen: list[Variant], place: prepare.Workplace) -> list[Contestant]:
    """Every engine that loads; the rows of the others say why not.

    First all files are made, because exports need memory; then the peers load before hybridge, because ratios need them.
    """
    sizes, built = sizes_of(place.checkpoint), []
    for variant in chosen:
        say(f"{run.shape}: files for {variant.name}")
        row = Row(variant=variant.name, group=variant.group, weight_bytes=prepare.weight_bytes(variant, sizes))
        row.bytes_read = {context: prepare.bytes_read(variant, sizes, context) for context in run.contexts}
        run.rows.append(row)
        built.append((row, prepare.build(variant, place, row)))
    say(f"{run.shape}: loading")
    loaded = [prepare.load(files, place, row) for row, files in reversed(built) if files]
    for row in run.rows:
        say(f"  {row.variant}: {row.failed or 'loaded'}")
    return [contestant for contestant in reversed(loaded) if contestant]


def publish(runs: list[Run], options: argparse.Namespace) -> None:
    """Write tables.md."""
    page = "\n\n".join(results.shape(run) for run in runs) + "\n"
    (options.output / "tables.md").write_text(page)
    print(page)


def machine(isa: str) -> dict[str, str]:
    """Return what the figures were measured on."""
    return {
        "CPU": f"{processor_name()}, {os.cpu_count()} cores",
        **({"instruction set": f"{isa}, of hybridge's kernels and llama.cpp"} if isa else {}),
        "code": campaign.fingerprint()[:12],
        "Python": platform.python_version(),
        "load of others before": f"{os.getloadavg()[0]:.1f}",
    }


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
