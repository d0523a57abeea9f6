"""Every name that the sources define or use, read from their syntax trees, without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("cache", "export", "runtime", "src", "scripts", "tests/helpers")  # tests name what does not exist
PACKAGES = ("cache", "export", "runtime")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class SourceNames:
    """modules: what each has at its top level; classes: what each has as attributes, and its bases; words: all identifiers."""

    def __init__(self, root: Path = ROOT) -> None:
        self.modules: dict[str, set[str]] = {}
        self.classes: dict[str, tuple[set[str], list[str]]] = {}
        self.identifiers: set[str] = set()
        self.strings: set[str] = set()
        for path in python_files(root):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            self.modules[module_name(path.relative_to(root))] = set(_top_level(tree))
            self._take(tree)
        self.cpp = "\n".join(path.read_text(encoding="utf-8") for path in (root / "runtime").rglob("*.[ch]*"))
        apps = (path for path in (root / "examples").rglob("*") if path.suffix in (".kt", ".swift", ".kts", ".cpp"))
        self.identifiers.update(*(re.findall(r"\w+", path.read_text(encoding="utf-8")) for path in apps))
        cmake = "".join(path.read_text(encoding="utf-8") for path in (root / "runtime").rglob("CMakeLists.txt"))
        self.cmake_targets = set(re.findall(r"add_library\(hybridge::(\w+) ALIAS", cmake))

    @cached_property
    def words(self) -> set[str]:
        """Identifiers, and the words of string constants other than docstrings."""
        return self.identifiers.union(*(re.findall(r"\w+", text) for text in self.strings))

    def resolves(self, parts: list[str]) -> bool:
        """Whether a dotted name is a module, something in one, or an attribute of a class of ours.

        A name that starts otherwise, with a variable or another library, passes where its last part occurs in the sources.
        """
        for size in range(len(parts), 0, -1):
            for name in (".".join(parts[:size]), ".".join(["hybridge", *parts[:size]])):
                if name in self.modules:
                    return self._in_module(name, parts[size:])
        if parts[0] in self.classes:
            return len(parts) == 1 or parts[1] in self._attributes(parts[0])
        return parts[0] != "hybridge" and parts[-1] in (self.words if len(parts) > 1 else self.identifiers | self.strings)

    def is_cpp_class(self, name: str) -> bool:
        return re.search(rf"\b(class|struct) {name}\b", self.cpp) is not None

    def _in_module(self, module: str, rest: list[str]) -> bool:
        if not rest or (len(rest) == 1 and rest[0] in self.modules[module]):
            return True
        return rest[0] in self.modules[module] and rest[0] in self.classes and rest[1] in self._attributes(rest[0])

    def _attributes(self, name: str) -> set[str]:
        """With those of base classes that are ours too."""
        own, bases = self.classes.get(name, (set(), []))
        return own.union(*(self._attributes(base) for base in bases if base != name))

    def _take(self, tree: ast.AST) -> None:
        docstrings = {id(each) for each in _docstrings(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                attributes, bases = self.classes.setdefault(node.name, (set(), []))
                attributes.update(_attributes(node))
                bases.extend(name for base in node.bases for name in _names(base))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                self.strings.add(node.value)
            self.identifiers.update(_names(node))


def python_files(root: Path) -> Iterator[Path]:
    """The sources, scripts without a suffix among them."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and not path.is_symlink() and (path.suffix == ".py" or is_python_script(path)):
                yield path


def is_python_script(path: Path) -> bool:
    return not path.suffix and path.parent.name == "scripts" and b"python" in path.read_bytes().partition(b"\n")[0]


def module_name(path: Path) -> str:
    """The name under which a file is imported, or its path with dots where it never is."""
    parts = [*path.parts[:-1], *([] if path.stem == "__init__" else [path.stem])]
    if parts[0] == "src":
        return ".".join(parts[1:])
    return ".".join(["hybridge", *parts] if parts[0] in PACKAGES else parts)


def _names(node: ast.AST) -> list[str]:
    """The identifiers that a node is or has itself."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.alias(name=name, asname=other):
            return [*name.split("."), *([other] if other else [])]
    return []


def _top_level(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        yield from _defined(node)
        if "__all__" in _defined(node):  # names that are imported at their first use are nowhere else
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        yield from _defined(each)
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            yield each.attr


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, Definition):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    targets: Iterable[ast.expr] = getattr(node, "targets", None) or [getattr(node, "target", ast.Constant(None))]
    return [name for target in targets for each in ast.walk(target) for name in _names(each) if isinstance(each, ast.Name)]


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
