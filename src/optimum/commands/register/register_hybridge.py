"""``optimum-cli export hybridge``; optimum imports every file of this namespace at its start, so this one imports little."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand


class HybridgeExportCommand(BaseOptimumCLICommand):
    """``hybridge export`` under optimum's names."""

    COMMAND = CommandInfo(name="hybridge", help="Export a hybrid model to one program with speculative rollback.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        """Leave every word to hybridge's own parser, ``--help`` too."""
        parser.prefix_chars = ""  # so that no word is an option of this parser
        parser.add_argument("words", nargs=REMAINDER)

    def run(self) -> None:
        """Run the export, which ends the process with hybridge's exit codes."""
        from hybridge.export.cli.export import optimum_main

        optimum_main(self.args.words)


# optimum asks once for every folder of the path that has this file: a checkout beside an installed wheel. One answer is enough.
REGISTER_COMMANDS = iter([(HybridgeExportCommand, ExportCommand)])
