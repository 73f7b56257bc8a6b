"""From a checkpoint to a model directory: `python -m training.export --folder runs/llava-0 --to DIRECTORY`.

Beside the model (of those in the package: in `training/logs`) it leaves the log, and `heads.pt`: the heads that only
training uses, and how far it came. `unpack` makes a checkpoint of them again, so that training can go on elsewhere (momenta
begin anew).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from divevlm_tiny import build, build_qwen
from divevlm_tiny.shipped import MODELS, save
from transformers import AutoModelForImageTextToText

from divevlm.terminal import one_line
from training.loop import CHECKPOINT, loaded

BUILD = {"llava": (build.llava, build.processor), "qwen2vl": (build_qwen.qwen2vl, build_qwen.processor)}


LOGS = Path(__file__).parent / "logs"
LOG, HEADS = "log.jsonl", "heads.pt"


def logs(model: Path) -> Path:
    """Where the training of a model left its log and its heads."""
    return LOGS / model.name if model.resolve().parent == MODELS.resolve() else model


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoint is")
    parser.add_argument("--model", choices=sorted(BUILD), default="llava")
    parser.add_argument("--to", type=Path, help="default: the package's own directory of that model")
    options = parser.parse_args(arguments)
    to = options.to or MODELS / options.model
    state = loaded(options.folder)
    fresh, processor = BUILD[options.model]
    model = fresh().eval()
    model.load_state_dict(state["modules"]["model"])
    to.mkdir(parents=True, exist_ok=True)
    save(model, processor(), to)
    beside = logs(to)
    beside.mkdir(parents=True, exist_ok=True)
    shutil.copy(options.folder / LOG, beside / LOG)
    heads = {name: value.to(torch.bfloat16) for name, value in state["modules"]["heads"].items()}
    torch.save({"step": state["step"], "spent": state["spent"], "heads": heads}, beside / HEADS)


def unpack(shipped: Path, folder: Path) -> None:
    """A checkpoint in `folder` from an exported model, if there is none."""
    if (folder / CHECKPOINT).exists():
        return
    if not (logs(shipped) / HEADS).exists():
        raise ValueError(f"--go-on must be a model that was exported after training, got {str(shipped)!r}")
    left = torch.load(logs(shipped) / HEADS, map_location="cpu", weights_only=True)
    weights = AutoModelForImageTextToText.from_pretrained(shipped, dtype=torch.float32).state_dict()
    heads = {name: value.float() for name, value in left["heads"].items()}
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(logs(shipped) / LOG, folder / LOG)
    state = {
        "step": left["step"],
        "spent": left["spent"],
        "modules": {"model": weights, "heads": heads},
        "optimizers": [],
    }
    torch.save(state, folder / CHECKPOINT)


if __name__ == "__main__":
    raise SystemExit(one_line(main))
