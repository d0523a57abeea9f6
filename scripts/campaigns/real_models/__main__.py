"""Published, trained models beside llama.cpp on the same GGUF files: numbers, texts and speeds of one run.

llama.cpp is compiled for this machine at the first run, which takes minutes. It, the models, artifacts and llama.cpp's
roundings stay in --work for the next one.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

from campaigns import campaign
from campaigns.bench import peers
from campaigns.real_models import quality, speed, text
from campaigns.real_models.models import MODELS, RealModel, gguf_of
from hybridge.export.api import export_model
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer

PARTS = ("quality", "text", "speed", "drafts")
PROSE = Path(__file__).parent / "prose.txt"
KEPT = ExportOptions(quantize="keep")
ROUNDED: dict[str, tuple[ExportOptions, str | None]] = {
    "hybridge, its own numbers (the default)": (KEPT, None),
    "hybridge, float32 (--quantize none)": (ExportOptions(), None),
    "hybridge, --recipe small": (ExportOptions(recipe="small", rounding="blocks"), None),
    "hybridge, --recipe balanced": (ExportOptions(recipe="balanced", rounding="blocks"), None),
    "hybridge, --recipe quality": (ExportOptions(recipe="quality", rounding="blocks"), None),
}
EDITED = """def mean(numbers):
    total = 0
    for number in numbers:
        total = total + number
    return total / len(numbers)

def variance(numbers):
    middle = mean(numbers)
    total = 0
    for number in numbers:
        total = total + (number - middle) ** 2
    return total / len(numbers)
"""


def main() -> int:
    """Print the tables of each model."""
    parser = campaign.parser("real-models", __doc__)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "hybridge-bench", help="where files are kept")
    parser.add_argument("--model", choices=[each.file for each in MODELS], help="one of the models; all if left out")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="some of the parts")
    parser.add_argument("--reuse", action="store_true", help="the artifacts of an earlier run, if the code has not changed")
    isa = "kernels of both engines for this instruction set; without it the best of the machine"
    parser.add_argument("--isa", choices=sorted(filter(None, peers.INSTRUCTION_SETS)), default="", help=isa)
    parser.add_argument("--rounds", type=int, default=5, help="turns of both engines for each speed")
    options = parser.parse_args()
    if not peers.installed(options.work, options.isa):
        print("Compiling llama.cpp: once, some minutes", file=sys.stderr)
        peers.install(options.work, options.isa)
    if options.isa:
        os.environ["HYBRIDGE_ISA"] = options.isa
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for model in MODELS if options.model is None else [each for each in MODELS if each.file == options.model]:
        show(model, options.work, peers.python_of(options.work, options.isa), options)
    return 0


def show(model: RealModel, work: Path, python: Path, options: argparse.Namespace) -> None:
    """Print the parts of one model's report; llama.cpp is that of the interpreter ``python``."""
    gguf, parts, rounds, reuse = gguf_of(model, work / "real"), options.only, options.rounds, options.reuse
    kept = artifact(gguf, "kept", KEPT, None, reuse=reuse)
    opened = open_artifact(kept)
    prose = PROSE.read_text(encoding="utf-8")
    say(f"## {model.name}\n")
    if "quality" in parts:
        tokens = Tokenizer.of(opened).encode(prose).ids
        say(f"{len(tokens)} tokens of English prose.\n\n{quality.HEAD}")
        folders = {
            name: artifact(gguf, f"row{i}", *made, reuse=reuse)
            for i, (name, made) in enumerate(ROUNDED.items())
            if made[0] != KEPT
        }
        reference = quality.Reference.of(gguf, tokens, python)
        for row in quality.rows(reference, {next(iter(ROUNDED)): kept, **folders}, gguf.parent):
            say(row)
    if "text" in parts:
        say("\nGreedy texts:\n")
        for line in text.greedy_lines(kept, gguf, python, chats=model.chats):
            say(line)
        for line in text.served_lines(kept) if model.chats else ():
            say(line)
    if "speed" in parts:
        say(f"\nAt {speed.CONTEXT} tokens, {rounds} rounds:\n\n{speed.HEAD}")
        for row in speed.rows(kept, gguf, opened.manifest.vocab_size, python, work, rounds):
            say(row)
        say(f"\n{speed.first_token_seconds(kept, text.BEGINNINGS[0]):.2f} s from the command to the first character.\n")
    if "drafts" in parts and model.chats:
        for row in speed.drafts_rows(kept, chats(prose), rounds, gguf, python):
            say(row)


def chats(prose: str) -> dict[str, str]:
    """Return messages of kinds whose answers repeat their prompt more or less."""
    return {
        "a summary": f"Summarize this text in its own words:\n\n{prose[:2400]}",
        "an edit of code": f"Rename the variable total to result in this code and answer with the whole code:\n\n{EDITED}",
        "an extraction": f"Copy every sentence of this text that names a number or a date:\n\n{prose[:2400]}",
        "a translation": f"Translate this text into French:\n\n{prose[:800]}",
        "free chat": "What makes a good friend? Answer in a few paragraphs.",
    }


def artifact(gguf: Path, name: str, options: ExportOptions, calibrate: str | None, *, reuse: bool) -> Path:
    """Return an artifact of the file, exported beside it."""
    folder = gguf.with_name(f"{gguf.stem}-{name}")
    if not (reuse and folder.exists()):
        export_model(gguf, folder, replace(options, max_seq_len=2048), calibrate=calibrate, force=True)
    return folder


def say(line: str) -> None:
    """Print a line now."""
    print(line, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
