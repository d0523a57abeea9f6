"""Train the embedded models: the byte-level target, and its drafters."""

import argparse
import tempfile
from pathlib import Path

import torch

from training import drafters, target

SCRATCH = Path(tempfile.gettempdir()) / "hybridge-train"
BUDGETS = {"target": 85.0, "draft": 20.0, "mtp": 20.0, "dflash": 20.0, "dspark": 20.0}


def main() -> None:
    """Train one of them within its budget."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("model", nargs="?", choices=BUDGETS, default="target", help="drafters learn from a finished target")
    parser.add_argument("--minutes", type=float, help=f"wall-clock training budget (default: {BUDGETS})")
    parser.add_argument("--texts", type=float, default=12, help="minutes for writing the drafters' texts, if none are kept")
    parser.add_argument("--out", type=Path, default=Path("export/embedded"), help="the target's folder")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    minutes = options.minutes or BUDGETS[options.model]
    if options.model == "target":
        target.main(options.out, minutes)
    else:
        drafters.main(options.model, options.out, minutes, options.texts, SCRATCH)


if __name__ == "__main__":
    main()
