"""The pages of the C and C++ interfaces: what the headers declare, with the comments above it, without what stands inside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from documenting.markdown import fence

NATIVE = Path("runtime/native/hybridge")
CPP = (
    "model",
    "session",
    "logits",
    "speculative",
    "drafter",
    "distribution",
    "prompt_lookup",
    "block_drafter",
    "sampling",
    "threads",
)
C_HEAD = """# C

`hybridge/hybridge.h`, for C and for every language that calls C. [On a device](../on-device.md#an-app-in-c-or-c) says how an
app links to it.

"""
CPP_HEAD = """# C++

Headers in C++20 over ExecuTorch. [On a device](../on-device.md#an-app-in-c-or-c) says how an app links to them. A call answers
with a value, or with an `Error` of ExecuTorch's.

"""
SCOPE = re.compile(r"^\s*(template\b.*>\s*)?(class|struct|enum|union|namespace|concept|extern)\b", re.DOTALL)
NOISE = re.compile(r"^#.*\n|^extern \"C\" \{\n|^namespace \w*.*\{\n|^\}  // namespace.*\n|^\}\n", re.MULTILINE)


def c_page(root: Path) -> str:
    """Return the Markdown of hybridge.h."""
    return C_HEAD + "\n".join(_parts((root / NATIVE / "hybridge.h").read_text(encoding="utf-8"), "c"))


def cpp_page(root: Path) -> str:
    """Return the Markdown of the C++ headers."""
    texts = {name: (root / NATIVE / f"{name}.h").read_text(encoding="utf-8") for name in CPP}
    return CPP_HEAD + "\n".join(
        f"## hybridge/{name}.h\n\n" + "\n".join(_parts(declarations(text), "cpp")) for name, text in texts.items()
    )


def _parts(text: str, language: str) -> Iterator[str]:
    """Yield comments as prose and declarations as code; an indented comment is an example."""
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", text, flags=re.DOTALL)
    for chunk in re.split(r"\n{2,}(?=\S)", NOISE.sub("", text)):
        comment = re.match(r"(?://.*\n?)*", chunk)
        assert comment is not None
        yield from _prose(comment[0], language)
        if code := chunk[comment.end() :].strip("\n"):
            yield fence(code, language)


def _prose(comment: str, language: str) -> Iterator[str]:
    lines = [line.removeprefix("//").removeprefix(" ") for line in comment.splitlines()]
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        if paragraph.startswith("  "):
            yield fence("\n".join(line.removeprefix("  ") for line in paragraph.splitlines()), language)
        elif paragraph.strip():
            yield paragraph.replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*") + "\n"


def declarations(text: str) -> str:
    """Return a header without the bodies of its functions and without private members and details."""
    text = re.sub(r"\n\s*private:.*?(?=\n\};)", "", text, flags=re.DOTALL)
    text = re.sub(r"^namespace (?:detail )?\{\n.*?^\}  // namespace( detail)?\n", "", text, flags=re.DOTALL | re.MULTILINE)
    kept, at, begun = "", 0, 0
    while at < len(text):
        if text.startswith("//", at):
            end = text.find("\n", at)
            kept, at = kept + text[at:end], end
        elif text[at] == "{" and _begins_member(kept[begun:]):
            end = _closing(text, at) + 1
            kept, at = kept + text[at:end], end
        elif text[at] == "{" and _opens_function(statement := kept[begun:]):
            kept = kept[:begun] + _without_initializers(statement) + ";"
            at = _closing(text, at) + 1
            begun = len(kept)
        else:
            kept += text[at]
            at += 1
            if kept[-1] in "{};" or kept.endswith(("public:", "\n\n")):
                begun = len(kept)
    return kept


def _opens_function(statement: str) -> bool:
    code = re.sub(r"//.*", "", statement)
    return "(" in code and not SCOPE.match(code) and not re.search(r"=\s*$", code)


def _begins_member(statement: str) -> bool:
    """Return whether a constructor gives a member its value in braces."""
    return re.search(r"\)\s*:\s.*\w$", statement, re.DOTALL) is not None


def _without_initializers(statement: str) -> str:
    """Return a function's head without the values that a constructor gives its members."""
    return re.sub(r"\)\s*:\s*\w+[({].*$", ")", statement, flags=re.DOTALL).rstrip()


def _closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError("a brace is not closed")
