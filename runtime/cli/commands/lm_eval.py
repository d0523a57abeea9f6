"""``hybridge lm-eval``"""

from __future__ import annotations

import sys

import typer

from hybridge.cache.errors import UsageError

EXAMPLES = ("hybridge lm-eval run --model hybridge --model_args artifact=OUT,lookup=True --tasks arc_easy,wikitext",)
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""From its own command on all is lm_eval's, ``run --help`` too."""


def lm_eval(context: typer.Context) -> None:
    """Run EleutherAI's lm_eval, which then knows --model hybridge; what follows is its own, such as run --help or ls tasks.

    --model_args are artifact=OUT and, to draft: draft=OUT2, lookup=True or own=True; threads=N; max_gen_toks=N.
    """
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise UsageError(f"lm-eval needs {error.name}, which is not installed: pip install 'hybridge[eval]'.") from None
    import hybridge.runtime.integrations.lm_eval  # noqa: F401  registers the model

    sys.argv = ["hybridge lm-eval", *context.args]  # it reads no other arguments than the process's
    cli_evaluate()
