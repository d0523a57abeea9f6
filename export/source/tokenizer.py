"""Read the tokenizer beside a checkpoint's weights, convert old formats, and write the files that an artifact gets.

An artifact gets the tokens that transformers makes, which are not always those of tokenizer.json, and all ends of a
text.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from hybridge.errors import CheckpointError
from hybridge.export.source.files import first_line, read_object, text_part
from hybridge.runtime.artifact.tokenizer import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, special_tokens
from hybridge.runtime.binding.tokenizer import Tokenizer as CoreTokenizer
from hybridge.runtime.binding.tokenizer import UnreadableTokenizerError
from hybridge.runtime.pack.tokenizer import PLAIN_CLASS

TOKENIZER = "tokenizer.json"
COPIED_FILES = (
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS_MAP,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
WITHOUT = "the artifact will have no tokenizer.json, so 'run' and 'chat' will refuse it and a Session takes token ids alone"


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """A tokenizer and the folder of its files. special: its named tokens; note: a warning for the user, or empty."""

    folder: Path
    tokenizer: Tokenizer | None
    special: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @cached_property
    def core(self) -> CoreTokenizer | None:
        """The tokenizer as the core runs it, None without one. Raises CheckpointError if the core does not have all parts."""
        if self.tokenizer is None:
            return None
        try:
            return CoreTokenizer(self.tokenizer.to_str().encode())
        except UnreadableTokenizerError as error:
            raise CheckpointError(
                f"the tokenizer in {self.folder} cannot be run: {error.reason}. Give a folder that has another tokenizer of "
                "this model by --tokenizer, or take its files out of the folder: the artifact then takes token ids alone."
            ) from None

    def write(self, folder: Path) -> None:
        """Write the tokenizer, and other files that a runtime may read, into the artifact ``folder``."""
        for name in COPIED_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)
        # An artifact has no subfolders.
        for path in sorted((self.folder / "additional_chat_templates").glob("*.jinja")):
            shutil.copyfile(path, folder / f"chat_template.{path.name}")
        if self.tokenizer is not None:
            (folder / TOKENIZER).write_text(self._content(self.tokenizer), encoding="utf-8")
        config = read_object(folder / TOKENIZER_CONFIG) or self.special
        if self.tokenizer is not None and config:  # transformers is to take the tokenizer.json beside it as it is
            config = {name: each for name, each in config.items() if name != "auto_map"} | {"tokenizer_class": PLAIN_CLASS}
        if config:
            (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    def _content(self, tokenizer: Tokenizer) -> str:
        """Return the checkpoint's own tokenizer.json if it has the same tokens and neither truncates nor pads."""
        path = self.folder / TOKENIZER
        if not path.is_file():
            return str(tokenizer.to_str())
        text = path.read_text(encoding="utf-8")
        own, limits = Tokenizer.from_str(text), json.loads(text)
        plain = limits.get("truncation") is None and limits.get("padding") is None
        return text if plain and same_tokenizer(own, tokenizer) else str(tokenizer.to_str())


def without_nfc(text: str) -> str:
    """Return a tokenizer.json without Unicode's form NFC; the same text if it has none."""
    content = json.loads(text)
    normalizer = _without_nfc(content.get("normalizer"))
    if normalizer == content.get("normalizer"):
        return text
    return json.dumps({**content, "normalizer": normalizer}, ensure_ascii=False)


def _without_nfc(normalizer: Any) -> Any:
    """Return a normalizer without NFC, None if nothing is left."""
    match normalizer:
        case {"type": "NFC"}:
            return None
        case {"type": "Sequence", "normalizers": list(parts)}:
            left = [part for part in map(_without_nfc, parts) if part is not None]
            return {**normalizer, "normalizers": left} if left else None
    return normalizer


def read_tokenizer(folder: Path, *, verbatim: bool = False) -> TokenizerFiles:
    """Return the tokenizer in ``folder`` as transformers has it, converted if there is no tokenizer.json.

    verbatim: take tokenizer.json as it is, whatever transformers makes of it. Raises CheckpointError if a file is
    damaged, or has parts that the core does not have.
    """
    files = _tokenizer_files(folder, verbatim)
    _ = files.core
    return files


def _tokenizer_files(folder: Path, verbatim: bool) -> TokenizerFiles:
    named = special_tokens(read_object(folder / TOKENIZER_CONFIG), read_object(folder / SPECIAL_TOKENS_MAP))
    if (folder / TOKENIZER).is_file():
        own = _read(folder / TOKENIZER)
        tokenizer = own if verbatim else whole_texts(as_transformers(folder, own))
        return TokenizerFiles(folder=folder, tokenizer=tokenizer, special=named, note=_unfollowed(folder, tokenizer, named))
    source = next((name for name in SOURCES if (folder / name).is_file()), None)
    if source is None:
        return TokenizerFiles(folder=folder, tokenizer=None, special=named, note=f"{folder} has no tokenizer: {WITHOUT}.")
    try:
        made = convert(folder, source)
    except ValueError as error:
        note = f"{folder} has no tokenizer.json, and {source} cannot be converted ({error}): {WITHOUT}."
        return TokenizerFiles(folder=folder, tokenizer=None, special=named, note=note)
    note = f"{folder} has no tokenizer.json: one was made of {source}."
    return TokenizerFiles(folder=folder, tokenizer=whole_texts(made.tokenizer), special=made.special | named, note=note)


def whole_texts(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off what training left in the file: truncation would cut a prompt, padding would lengthen it."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read(path: Path) -> Tokenizer:
    try:
        return whole_texts(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library has no error of its own
        raise CheckpointError(f"{path} cannot be read as a tokenizer ({error}); get the file again.") from None


def _unfollowed(folder: Path, tokenizer: Tokenizer, named: dict[str, str]) -> str:
    """Return a warning if tokenizer_config.json asks for bos, but neither tokenizer.json nor transformers adds it."""
    asked = read_object(folder / TOKENIZER_CONFIG).get("add_bos_token") is True
    bos = tokenizer.token_to_id(named.get("bos_token", ""))
    if not asked or bos is None or bos in tokenizer.encode("").ids:
        return ""
    return (
        f"{folder / TOKENIZER_CONFIG} says add_bos_token, but {TOKENIZER} adds no {named['bos_token']}, and so neither does "
        "transformers: the artifact's texts begin without it. If the model writes nonsense, begin them with it."
    )


# Ends of a text: a checkpoint names them in up to four files, and a chat may end with another token than a document


@dataclass(frozen=True, kw_only=True)
class EndOfText:
    """The tokens that end a text. ids: each once, in the files' order; ignored: names that are no tokens of the model."""

    ids: list[int]
    ignored: list[str]


def end_of_text(named: Iterable[Any], tokenizer: Tokenizer | None, vocab_size: int) -> EndOfText:
    """Return the ends among ``named``: ids, texts of tokens, or lists of these."""
    ids: dict[int, None] = {}
    ignored: list[str] = []
    lists = (each if isinstance(each, list) else [each] for each in named)
    for each in (each for one in lists for each in one if each is not None):
        token = tokenizer.token_to_id(each) if tokenizer and isinstance(each, str) else each
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab_size:
            ids[token] = None
        elif not isinstance(each, str) or tokenizer:
            ignored.append(repr(each))
    return EndOfText(ids=list(ids), ignored=ignored)


def named_ends(folder: Path, special: dict[str, str]) -> list[Any]:
    """Return the ends that the generation config, the config, its text config and the tokenizer's ``eos_token`` name.

    Reads the files themselves, because a config class fills in an id of its own if a file has none.
    """
    config = read_object(folder / "config.json")
    sources = (read_object(folder / "generation_config.json"), config, text_part(config))
    return [*(source.get("eos_token_id") for source in sources), special.get("eos_token")]


# transformers' AutoTokenizer may build another tokenizer than tokenizer.json describes: the class that the configs name
# puts its own pre-tokenizer and normalizer around the file's vocabulary, because files on the hub are known to be
# wrong. Users of transformers have those tokens, so an artifact gets them, too.


PARTS = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder")
"""Parts of a tokenizer.json that decide on the tokens of a text; the tokens around it are compared by their ids."""

SAMPLES = ("a", "\nThe quick brown fox,\n  12 of them: 'jumps' over x_y = f(3.5);\n", "x  \t漢字 é 👩\u200d🚀\r\n")
"""Texts with composed letters only, because some classes compose the others, which loses nothing."""


def as_transformers(folder: Path, own: Tokenizer) -> Tokenizer:
    """Return AutoTokenizer's tokenizer for ``folder``, or ``own``, its tokenizer.json, if both are the same.

    Return ``own`` also if transformers cannot load one without code of the folder, or loses text that ``own`` keeps.
    """
    loaded = _load(folder)
    if loaded is not None:
        loaded = _without_made_up(loaded, folder, own)
    if loaded is None or same_tokenizer(loaded, own):
        return own
    return own if any(_keeps(own, text) and not _keeps(loaded, text) for text in SAMPLES) else loaded


def same_tokenizer(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether two tokenizers have the same parts and put the same tokens around a text."""
    first, second = (json.loads(each.to_str()) for each in (one, other))
    return _ids(one, "a") == _ids(other, "a") and all(first.get(part) == second.get(part) for part in PARTS)


def _ids(tokenizer: Tokenizer, text: str, *, around: bool = True) -> list[int] | None:
    """Return the tokens of a text, None if the tokenizer has none for it, such as an unknown token that is not there."""
    try:
        return list(tokenizer.encode(text, add_special_tokens=around).ids)
    except Exception:  # the library has no error of its own
        return None


def _without_made_up(loaded: Tokenizer, folder: Path, own: Tokenizer) -> Tokenizer:
    """Drop tokens that only transformers' class names, such as <s>, because the model has no row for them."""
    told = read_object(folder / TOKENIZER_CONFIG).get("added_tokens_decoder")
    entries = told.values() if isinstance(told, dict) else ()
    known = {*own.get_vocab(), *(entry.get("content") for entry in entries if isinstance(entry, dict))}
    content = json.loads(loaded.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in known]
    return Tokenizer.from_str(json.dumps(content))


def _load(folder: Path) -> Tokenizer | None:
    """Return transformers' tokenizer, or None if neither the class that it chooses nor the plain one is of this library."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        return _loaded(AutoTokenizer, folder) or _loaded(PreTrainedTokenizerFast, folder)
    finally:
        logging.set_verbosity(before)


def _loaded(kind: Any, folder: Path) -> Tokenizer | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return Tokenizer.from_str(loaded.backend_tokenizer.to_str())
        except Exception:  # whatever a class that does not fit the file makes transformers run into
            return None


def _keeps(tokenizer: Tokenizer, text: str) -> bool:
    ids = _ids(tokenizer, text, around=False)
    return ids is not None and str(tokenizer.decode(ids, skip_special_tokens=False)).strip() == text.strip()


# Convert the files of older checkpoints: sentencepiece's or tiktoken's model, or vocab.json and merges.txt.
# transformers converts, and each result is compared with the original, because some of its classes make a nearly empty
# tokenizer, or other tokens, of a file that they do not know.


SOURCES = ("tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json")
SAMPLE = "\nThe quick brown fox,\n  12 of them: 'jumps' over x_y = f(3.5);\n"
"""Begins with a line break, so that a space that sentencepiece may put before it does not merge with the first word."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A converted tokenizer, and its special tokens by the names that its class gives them."""

    tokenizer: Tokenizer
    special: dict[str, str]


def convert(folder: Path, source: str) -> Converted:
    """Convert the file ``source``. Raises ValueError with the reason if no result encodes as the original."""
    if source == "vocab.json" and not (folder / "merges.txt").is_file():
        raise ValueError("vocab.json is there, but the merges.txt that belongs to it is missing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that read the old files
        made, told = _converted(folder, source)
    for is_same in _checks(folder / source):
        for one in made:
            with suppress(Exception):  # the library has no error of its own for a vocabulary that lacks what a text needs
                if is_same(one.tokenizer):
                    return one
    if source == "vocab.json" and not read_object(folder / TOKENIZER_CONFIG).get("tokenizer_class"):
        told = "no tokenizer_config.json names its tokenizer_class, such as GPT2Tokenizer"
    raise ValueError(told)


def _converted(folder: Path, source: str) -> tuple[list[Converted], str]:
    """Return transformers' conversions, and the reason if there are none."""
    made, told = [], "transformers makes other tokens of it"
    for load in _ways(folder, source):
        try:
            loaded = load()
            made.append(Converted(tokenizer=loaded.backend_tokenizer, special=dict(loaded.special_tokens_map)))
        except Exception as error:  # whatever a damaged file or a missing library makes transformers run into
            told = first_line(error)
    return made, told


def _ways(folder: Path, source: str) -> Iterator[Callable[[], Any]]:
    """Yield loaders: the config's class, the tokenizer config's class, and the usual ones of the file."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if source == "vocab.json":
        options |= {"vocab": str(folder / source), "merges": str(folder / "merges.txt")}
    yield lambda: AutoTokenizer.from_pretrained(folder, **options)
    if kind := _kind(read_object(folder / TOKENIZER_CONFIG).get("tokenizer_class")):
        yield lambda: AutoTokenizer.from_pretrained(folder, tokenizer_type=kind, **options)
    if source == "tokenizer.model":
        yield lambda: LlamaTokenizer.from_pretrained(folder, **options)
    if source != "vocab.json":
        yield lambda: PreTrainedTokenizerFast.from_pretrained(folder, **options)


def _kind(name: Any) -> str | None:
    """Return a model type whose tokenizer class has this name."""
    from hybridge.export.pinned.transformers import tokenizer_classes

    plain = str(name).removesuffix("Fast")
    return next((kind for kind, each in tokenizer_classes.items() if each and each.removesuffix("Fast") == plain), None)


# Compare a conversion with the original


def _checks(path: Path) -> list[Callable[[Tokenizer], bool]]:
    """Return the checks for a file, the strictest first: the sample keeps its text, or becomes sentencepiece's ids."""

    def ids(tokenizer: Tokenizer) -> list[int]:
        return list(tokenizer.encode(SAMPLE, add_special_tokens=False).ids)

    def keeps_text(tokenizer: Tokenizer) -> bool:
        return str(tokenizer.decode(ids(tokenizer))).strip() == SAMPLE.strip()

    if path.name == "vocab.json":
        vocabulary = read_object(path)
        return [lambda tokenizer: vocabulary.items() <= tokenizer.get_vocab().items() and keeps_text(tokenizer)]
    pieces = _sentencepiece(path) if path.name == "tokenizer.model" else None
    if pieces is None:
        return [keeps_text]
    wanted = pieces.encode(SAMPLE)
    return [lambda tokenizer: ids(tokenizer) == wanted, lambda tokenizer: ids(tokenizer) == wanted[1:]]  # no space before it


def _sentencepiece(path: Path) -> Any:
    """Return sentencepiece's own model of the file, or None if it is none, such as tiktoken's under the same name.

    Raises ValueError if sentencepiece is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise ValueError(f"{path.name} needs the package sentencepiece: install it, and export again") from None
        try:
            return SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError):
            return None
