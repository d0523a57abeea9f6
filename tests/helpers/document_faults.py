"""What a document says that is not so: links, paths, names, options and commands that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from command_names import OPTION, Commands
from documents import Document
from source_names import ROOT, SourceNames

TOP = ("cache", "export", "runtime", "docs", "tests", "scripts", "src", ".ci")
PATH = re.compile(rf"(?<![\w./<-])(?:{'|'.join(map(re.escape, TOP))})/[\w./*-]*")
BARE_FILE = re.compile(r"(?<![\w./*-])\w+\.(?:py|cpp|h)\b")
DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\(.*\))?(?:\.\w+\(.*\))?$", re.DOTALL)
OURS_IN_CPP = re.compile(r"hybridge::(\w+)$")
SHELL = ("sh", "console", "")
"""Blocks of commands; one without a language may be anything, of which only lines that begin with a command are looked at."""

NOT_OURS = {
    "LlmModule": "ExecuTorch's class in Kotlin",
    "num_bos": "an argument of its runners",
    "TextRunner": "ExecuTorch's class in Swift",
    "resetContext": "its method",
    "MultimodalRunner": "ExecuTorch's runner of models that see and hear",
    "token_embedding": "a method that it looks for",
    "backend_xnnpack": "ExecuTorch's frameworks for Swift",
    "kernels_llm": "the same",
    "kernels_optimized": "the same",
    "llama.cpp": "a project, not a file",
    "verify_4": "runtime.manifest.shorter_verify makes these names",
    "draft_4": "runtime.artifacts.drafter_description.shorter_draft makes these names",
    "llama_eagle3.py": "vLLM's, a drafter's source",
    "qwen3_5_mtp.py": "the same",
}
"""All that documents may name although our sources do not, and what it is."""


class Checker:
    """Finds the faults of a document; the names of the sources and commands are collected once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root, self.names, self.commands = root, SourceNames(root), Commands(root)
        self.files = {path.name for top in TOP for path in (root / top).rglob("*")} | {path.name for path in root.iterdir()}

    def faults(self, document: Document) -> list[str]:
        found = [*self._links(document), *self._paths(document), *self._names(document)]
        for line in self._command_lines(document):
            found += self.commands.faults(line)
        return sorted(set(found))

    def _links(self, document: Document) -> Iterator[str]:
        for link in document.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            path = (document.path.parent / target).resolve() if target else document.path
            if target and not path.exists():
                yield f"the link {link} leads nowhere"
            elif anchor and anchor not in (document if not target else Document.read(path)).anchors:
                yield f"the link {link} has no such heading"

    def _paths(self, document: Document) -> Iterator[str]:
        for text in (*document.codes, *document.prose, *document.blocks(*SHELL, "text")):
            for match in PATH.finditer(text):
                path = match.group().rstrip(".,")
                if not any(self.root.glob(path)):
                    yield f"there is no {path}"
            for match in BARE_FILE.finditer(text):
                if match.group() not in self.files | NOT_OURS.keys():
                    yield f"there is no file {match.group()}"

    def _names(self, document: Document) -> Iterator[str]:
        examples = "\n".join(document.blocks("cpp", "python"))  # which other tests run
        for code in document.codes:
            keyword, equals, _ = code.partition("=")
            match = DOTTED.match(keyword if equals and keyword.isidentifier() else code)
            if match and not match[1].isupper() and match[1] not in NOT_OURS and not self._exists(match[1], examples):
                yield f"nothing is called {match[1]}"
            if (cpp := OURS_IN_CPP.match(code)) and not self._exists_in_cpp(cpp[1]):
                yield f"there is no C++ class, operator or target of CMake {code}"

    def _exists_in_cpp(self, name: str) -> bool:
        return self.names.is_cpp_class(name) or name in self.names.strings | self.names.cmake_targets

    def _exists(self, name: str, examples: str) -> bool:
        parts = name.split(".")
        if self.names.resolves(parts):
            return True
        if len(parts) > 1:  # a file that an artifact or a checkpoint has
            return len(parts) == 2 and any(name in text for text in self.names.strings)
        known = name in self.names.words or f"{name}_text" in self.names.words  # of multimodal checkpoints
        return (name.islower() and known) or re.search(rf"\b{name}\b", self.names.cpp + examples) is not None

    def _command_lines(self, document: Document) -> Iterator[str]:
        yield from (code for code in document.codes if OPTION.match(code) or code.startswith(("hybridge ", "scripts/")))
        for block in document.blocks(*SHELL):
            yield from (line for line in block.splitlines() if re.match(r"(\$ )?(hybridge|scripts/\w+) ?", line))
