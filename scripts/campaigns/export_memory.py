"""Measure time and memory of exporting checkpoints that are larger than the artifact, and than memory, with random weights."""

import argparse
import shutil
from pathlib import Path

from safetensors import safe_open

from campaigns import campaign
from campaigns.bench import export_cost
from campaigns.bench.shapes import SHAPES, write_large_checkpoint

OPTIONS = ("--max-seq-len", "2048", "--quantize", "8da4w", "--embedding-quantize", "4w")
HEAD = "| shape | weights | checkpoint, GB | model.pte, GB | peak, GB | allowed, GB | seconds |"


def main() -> None:
    """Print a row for each shape; allowed are twice the artifact and two layers in float32."""
    parser = campaign.parser("export-memory", __doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--shapes", default="qwen3.5-4b", help=f"with commas between, of {', '.join(SHAPES)}")
    parser.add_argument("--options", type=str.split, default=" ".join(OPTIONS), help="of 'hybridge export'")
    parser.add_argument("--limit", type=float, default=1500, help="seconds for one export")
    parser.add_argument("--keep", action="store_true", help="keep checkpoints and artifacts")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "hybridge-bench", help="for all large files")
    options = parser.parse_args()
    print(HEAD, "| --- " * HEAD.count(" | ") + "| --- |", sep="\n", flush=True)
    for name in options.shapes.split(","):
        work = options.work.resolve() / f"large-{name}"
        write_large_checkpoint(SHAPES[name], work / "checkpoint")
        made = export_cost.export(work / "checkpoint", work, options.options, options.limit, keep=False)
        weights, layer = sizes(work / "checkpoint")
        allowed = 2 * made.size + 2 * 4 * layer
        columns = (2 * weights, made.size, made.memory, allowed)
        print(
            f"| {name} | {weights / 1e9:.2f} B | {' | '.join(f'{each / 1e9:.2f}' for each in columns)} | {made.seconds:.0f} |"
        )
        if not options.keep:
            shutil.rmtree(work)


def sizes(checkpoint: Path) -> tuple[int, int]:
    """Return how many numbers a checkpoint has, and how many its largest layer has."""
    layers: dict[str, int] = {}
    total = 0
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  not a dict
                count = 1
                for size in file.get_slice(name).get_shape():
                    count *= size
                total += count
                if ".layers." in name:
                    layer = name.partition(".layers.")[2].partition(".")[0]
                    layers[layer] = layers.get(layer, 0) + count
    return total, max(layers.values())


if __name__ == "__main__":
    main()
