"""From a checkpoint to a model directory: `python -m divevlm.tiny.training.export --folder runs/llava-0 --to DIRECTORY`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from divevlm.tiny import build
from divevlm.tiny.shipped import MODELS, save


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoint is")
    parser.add_argument("--to", type=Path, default=MODELS / "llava")
    options = parser.parse_args(arguments)
    state = torch.load(options.folder / "checkpoint.pt", map_location="cpu", weights_only=True)
    model = build.llava().eval()
    model.load_state_dict(state["modules"]["model"])
    options.to.mkdir(parents=True, exist_ok=True)
    save(model, build.processor(), options.to)
    shutil.copy(options.folder / "log.jsonl", options.to / "training.jsonl")


if __name__ == "__main__":
    main()
