"""The command line of any model: MODEL for the commands that take an artifact, and ``hybridge cache``."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.markup import escape

from hybridge.errors import ArtifactError, UsageError
from hybridge.export.cli.choices import ExportChoices
from hybridge.models.find import ModelOptions, NamedModel, find_artifact
from hybridge.models.kept import KeptModel, ModelCache, folder_size
from hybridge.runtime.cli.console import err, megabytes, out, print_json, table
from hybridge.runtime.cli.options import JsonOption, option_parameters, with_parameters
from hybridge.runtime.version import code_version

PANEL = "Of a model that is no artifact"
PROGRAMS = "programs"
"""The name of the kept programs in the list."""


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of an export, whose argument ``find`` returns the artifact of any model by them."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [each for name, each in signature.parameters.items() if name != "find"] + export_parameters()

    @wraps(command)
    def expanded(**given: Any) -> None:
        options = _pop_options(given)
        console = None if given.pop("quiet") else err
        cache, found = ModelCache(), list[Path]()

        def find(name: Path) -> Path:
            found.append(find_artifact(name, options, console))
            return found[-1]

        try:
            command(**given, find=find)
        except ArtifactError as error:
            kept = [path.parent.name for path in found if path.parent.parent == cache.folder]
            if not kept:
                raise
            raise ArtifactError(
                f"{error} It is kept by hybridge: after 'hybridge cache remove {kept[0]}' it is exported again."
            ) from error

    return with_parameters(expanded, parameters)


def describes_model(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``inspect`` with the options of an export, which describes a checkpoint that was not exported by itself."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [*signature.parameters.values(), *export_parameters()]

    @wraps(command)
    def expanded(**given: Any) -> None:
        options = _pop_options(given)
        given.pop("quiet")
        model = NamedModel(given["model"], options)
        if model.is_artifact:
            command(**given)
        elif model.is_here and (artifact := model.in_cache()) is not None:
            command(**given | {"model": artifact})
        elif given["html"] is not None:
            from hybridge.runtime.html_report import check_matplotlib

            check_matplotlib("--html")
            raise UsageError(f"--html shows an artifact, and {model.name} is not exported yet: run it once, or export it.")
        else:
            from hybridge.models.describe import describe

            describe(model, json=given["json"])

    return with_parameters(expanded, parameters)


def export_parameters() -> list[inspect.Parameter]:
    """Return the options of ``ModelOptions`` as ``hybridge export`` has them, under a title of their own, and --quiet."""
    names = {each.name for each in fields(ModelOptions)}
    quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of an export.", rich_help_panel=PANEL)]
    found = [inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=quiet)]
    for each in option_parameters(ExportChoices):
        if each.name in names:
            kind, option = get_args(each.annotation)
            option = copy.copy(option)
            option.rich_help_panel = PANEL
            found.append(each.replace(annotation=Annotated[kind, option]))
    return found


def _pop_options(given: dict[str, Any]) -> ModelOptions:
    return ModelOptions(**{each.name: given.pop(each.name) for each in fields(ModelOptions)})


# ``hybridge cache``

cache = typer.Typer(help="List and remove the models that were exported by run, chat, serve and bench.", no_args_is_help=True)


@cache.command("list")
def list_models(json: JsonOption = False) -> None:
    """List what is kept: models with their options, sizes and sources, the last used one first, and programs."""
    kept = ModelCache()
    models, programs = kept.models(), folder_size(kept.programs)
    if json:
        print_json({"folder": str(kept.folder), "models": [_to_dict(model) for model in models], "programs_bytes": programs})
        return
    if not models and not programs:
        err.print("Nothing is kept.")
        return
    grid = table(escape(str(kept.folder)), "model", "key", "size", "last used", "options", "source")
    for column in grid.columns[:-1]:
        column.no_wrap = True  # the source alone takes several lines
    for model in models:
        name, source, options = "damaged", "", ""
        if model.entry is not None:
            name, source = model.entry.name, model.entry.source
            options = ", ".join(f"{option}={value}" for option, value in model.entry.options.items())
            if model.entry.code != code_version():
                options = f"{options} (of another version: not used)".strip()
        grid.add_row(*map(escape, (name, model.key, megabytes(model.size), _ago(model.used), options or "usual", source)))
    if programs:
        grid.add_row(PROGRAMS, "", megabytes(programs), "", "", "programs without weights, for more models of these shapes")
    out.print(grid)
    out.print(f"{megabytes(sum(model.size for model in models) + programs)} in all", highlight=False)


@cache.command()
def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]…", help=f"Names, keys or sources as 'list' shows them, or {PROGRAMS}.", show_default=False
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all models and programs.")] = False,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="Remove models that were last used before this.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Remove models, which are exported again when they are asked for. A process that has one open keeps it until it ends."""
    if sum((bool(names), everything, older_than is not None)) != 1:
        raise UsageError("give either names, --all, or --older-than DAYS; 'hybridge cache list' shows what there is.")
    kept = ModelCache()
    models = kept.models()
    asked = set(names or ())
    if unknown := asked - {PROGRAMS} - {known for model in models for known in _names(model)}:
        raise UsageError(f"no model {sorted(unknown)[0]} is kept; 'hybridge cache list' shows what there is.")
    before = time.time() - 86400 * older_than if older_than is not None else 0.0
    chosen = [model for model in models if everything or model.used < before or asked & _names(model)]
    freed = sum(model.size for model in chosen)
    for model in chosen:
        kept.remove(model)
    if everything or PROGRAMS in asked:
        freed += folder_size(kept.programs)
        kept.remove_programs()
    if json:
        print_json({"removed": [model.key for model in chosen], "bytes": freed})
    else:
        count = f"{len(chosen)} model{'s' * (len(chosen) != 1)}"
        out.print(f"{count} removed; {megabytes(freed)} are free again.", highlight=False)


@cache.command()
def path(json: JsonOption = False) -> None:
    """Print the folder of the cache, which is hybridge/models in XDG_CACHE_HOME or ~/.cache."""
    if json:
        print_json({"folder": str(ModelCache().folder)})
    else:
        out.print(str(ModelCache().folder), highlight=False, soft_wrap=True)


def _names(model: KeptModel) -> set[str]:
    return {model.key} | ({model.entry.name, model.entry.source} if model.entry is not None else set())


def _to_dict(model: KeptModel) -> dict[str, object]:
    entry = {name: value for name, value in asdict(model.entry).items() if name != "key"} if model.entry is not None else {}
    return {"key": model.key, "bytes": model.size, "last_used": model.used, "damaged": model.entry is None, **entry}


def _ago(seconds: float) -> str:
    """Return how long ago a time was."""
    minutes = (time.time() - seconds) / 60
    for unit, length in (("day", 1440), ("hour", 60), ("minute", 1)):
        if (count := int(minutes // length)) > 0:
            return f"{count} {unit}{'s' * (count != 1)} ago"
    return "just now"
