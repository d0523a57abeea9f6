"""What is imported is declared, and only the ``pinned`` modules know the insides of libraries.

import-linter sees a library as one module; these rules look at names.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from checkout import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = sorted(path for folder in ("cache", "export", "runtime", "src/optimum") for path in (CHECKOUT / folder).rglob("*.py"))
PINNED = ("export/pinned/", "runtime/integrations/pinned.py", "runtime/pinned.py", "runtime/server/pinned.py")

DOCUMENTED = frozenset(
    {
        *("torch", "torch.nn", "torch.nn.functional", "torch.export", "torch.export.graph_signature", "torch.onnx.ops"),
        *("torch.fx", "torch.fx.experimental.symbolic_shapes", "torch.fx.node", "torch.fx.passes.infra.pass_base"),
        *("transformers", "transformers.utils", "transformers.modeling_outputs"),
        *("executorch.exir", "safetensors", "safetensors.torch", "tokenizers", "sentencepiece"),
        *("onnx", "onnx_ir", "onnx_ir.passes.common", "onnxruntime", "onnxscript"),
        *("numpy", "numpy.ctypeslib", "numpy.typing", "PIL", "PIL.Image"),
        *("gguf", "huggingface_hub", "huggingface_hub.errors", "peft", "regex"),
        *("jinja2", "tokenizers.models", "packaging.requirements", "pydantic", "pydantic.dataclasses", "typer"),
        *("llguidance", "uvicorn", "starlette.applications", "starlette.exceptions", "starlette.middleware"),
        *("starlette.middleware.cors", "starlette.requests", "starlette.responses", "starlette.routing", "starlette.types"),
        *("lm_eval.__main__", "lm_eval.api.model", "lm_eval.api.registry", "lm_eval.utils", "matplotlib", "matplotlib.figure"),
        *("rich.console", "rich.markdown", "rich.markup", "rich.progress", "rich.syntax", "rich.table", "rich.text"),
        *("markdown_it", "prompt_toolkit", "prompt_toolkit.completion", "prompt_toolkit.document", "prompt_toolkit.history"),
        *("prompt_toolkit.key_binding",),
        *("optimum.commands.base", "optimum.commands.export.base"),
    }
)
"""Modules of libraries whose documentation lists them; all others belong into ``pinned``."""


def inside(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


@pytest.mark.slow
def test_the_insides_of_libraries_are_for_pinned_alone() -> None:
    others = [path for path in MODULES if not inside(path).startswith(PINNED)]
    uses = {path: private_uses(ast.parse(path.read_text(encoding="utf-8"))) for path in others}
    found = [f"{inside(path)}:{line}: {what}" for path, each in uses.items() for line, what in each]
    assert not found, (
        "These use what libraries do not document. Give each a function or constant in a pinned module that says what is "
        "assumed, and a test in tests/repository/test_pins.py:\n" + "\n".join(found)
    )


@pytest.mark.parametrize(
    "code",
    [
        "import torch._export",
        "from executorch.exir.dialects._ops import ops",
        "def f():\n    from executorch.extension.pybindings import _C",
        "import executorch.exir.passes",
        "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS",
        "from executorch.backends.xnnpack import xnnpack_preprocess",
        "x = torch._check",
        "model.config._attn_implementation = 'eager'",
        "super().forward()._values",
        "getattr(model, '_model_mapping')",
        "EdgeCompileConfig(_check_ir_validity=False)",
        "import torch\ntorch.relu = None",
        "from torch.fx import Node\nNode.__init__.old = 1",
        "import torch\ntorch.backends.flags.enabled += 1",
        "from transformers import GenerationConfig\nsetattr(GenerationConfig, 'update', None)",
        "from unittest import mock",
    ],
)
def test_a_use_of_the_insides_is_found(code: str) -> None:
    assert list(private_uses(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import annotations\nimport os\nimport torch.nn.functional as F",
        "from hybridge.export.lower.fusion import match",
        "class A:\n    def f(self):\n        self._x = super()._y",
        "import torch\nx = torch.ones(1)\nx.y = torch.relu(x)",
        "getattr(model, 'config').__class__",
        "import os\nos._exit(1)",
        "kind._make(kind._fields)",
    ],
)
def test_what_is_documented_or_our_own_is_no_such_use(code: str) -> None:
    assert not list(private_uses(ast.parse(code)))


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and code of each use of an undocumented module or a private name, and of each patch of a library."""
    libraries = {name for node in ast.walk(tree) for name in bound_to_libraries(node)}
    for node in ast.walk(tree):
        hidden = isinstance(node, ast.Attribute) and private(node.attr) and not is_own(node.value) and not leaves(node)
        if hidden or imports_insides(node) or calls_insides(node, libraries) or patches(node, libraries):
            yield getattr(node, "lineno", 0), ast.unparse(node)


def private(name: str | None) -> bool:
    return bool(name) and str(name).startswith("_") and not str(name).startswith("__")


def is_own(owner: ast.expr) -> bool:
    is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    return is_super or (isinstance(owner, ast.Name) and owner.id in ("self", "cls"))


def leaves(node: ast.Attribute) -> bool:
    """Python documents ``os._exit``, and the names that every named tuple has, in spite of their underscores."""
    return ast.unparse(node) == "os._exit" or node.attr in ("_fields", "_make")


def is_library(module: str) -> bool:
    return module.partition(".")[0] not in {*sys.stdlib_module_names, "hybridge"}


def imports_insides(node: ast.AST) -> bool:
    modules = imported(node)
    names = [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
    from_library = any(is_library(module) for module in modules)
    within = any(is_library(module) and module not in DOCUMENTED for module in modules)
    return within or (from_library and any(private(name) for name in names)) or ("unittest" in modules and "mock" in names)


def calls_insides(node: ast.AST, libraries: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    by_name = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
    words = [each.value for each in node.args[1:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    patch = isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr") and root(node.args[0]) in libraries
    return patch or (by_name and any(map(private, words))) or any(private(each.arg) for each in node.keywords)


def patches(node: ast.AST, libraries: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and root(node) in libraries


def root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def bound_to_libraries(node: ast.AST) -> list[str]:
    """The names that an import of a library brings."""
    if isinstance(node, ast.Import):
        return [each.asname or each.name.partition(".")[0] for each in node.names if is_library(each.name)]
    if isinstance(node, ast.ImportFrom) and is_library(node.module or ""):
        return [each.asname or each.name for each in node.names]
    return []


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


# What is declared

DISTRIBUTIONS = packages_distributions()
EXTRAS = {
    name: frozenset(each for each in map(str, values) if not each.startswith("hybridge["))
    for name, values in PROJECT["optional-dependencies"].items()
    if name != "dev"
}
EVERYWHERE = "export"
"""An extra whose libraries any module may need: tests/repository/test_base_install.py says what has to run without them."""


def name_of(requirement: str) -> str:
    """``onnx-ir`` of ``onnx_ir>=1.1,<2``."""
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "._-")), len(requirement))
    return requirement[:end].lower().replace("_", "-").replace(".", "-")


def declared_for(path: Path, *, lazily: bool) -> set[str]:
    """A module may need an extra where it is about that extra, or imports it only when it is called."""
    needed = [extra for name, extra in EXTRAS.items() if lazily or name == EVERYWHERE or name in inside(path)]
    return {name_of(each) for each in (*PROJECT["dependencies"], *(each for extra in needed for each in extra))}


@pytest.mark.slow
@pytest.mark.parametrize("lazily", [False, True], ids=["at_import", "in_a_call"])
def test_what_is_imported_is_declared(lazily: bool) -> None:
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {module for node in (ast.walk(tree) if lazily else tree.body) for module in imported(node)}
        for module in filter(is_library, sorted(modules)):
            names = {name_of(each) for each in DISTRIBUTIONS[module.partition(".")[0]]}
            missing = f"{inside(path)} imports {module}: declare one of {names} in pyproject.toml"
            assert names & declared_for(path, lazily=lazily), missing


@pytest.mark.slow
def test_what_is_declared_is_imported_or_run() -> None:
    """A library that nobody imports any more need not be installed."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES]
    modules = {module.partition(".")[0] for tree in trees for node in ast.walk(tree) for module in imported(node)}
    used = {name_of(each) for module in filter(is_library, modules) for each in DISTRIBUTIONS[module.partition(".")[0]]}
    declared = {name_of(each) for each in (*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra))}
    used.add("cmake")  # which compiling.py starts
    assert declared <= used, f"nothing imports {declared - used}: drop them from pyproject.toml"
