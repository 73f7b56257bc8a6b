"""The embedded suite as lmms-eval tasks on local data: `python -m divevlm.experiments.lmms.tasks DIR`, then

python -m lmms_eval --model divevlm --model_args pretrained=llava,method=dive,keep=64 --include_path DIR --tasks divevlm_existence
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

TASK = """task: divevlm_{task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_visual: !function functions.visual
doc_to_text: !function functions.text
doc_to_target: answer
process_results: !function functions.score
generation_kwargs:
  max_new_tokens: 16
  temperature: 0
  do_sample: false
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
FUNCTIONS = "from divevlm.experiments.lmms.tasks import score, text, visual  # noqa: F401\n"


def write(folder: Path, limit: int = 25, split: str = "validation") -> list[str]:
    """One task a kind of question, with its data beside it; their names."""
    from divevlm.experiments.tasks import ALL, TASKS, items

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "functions.py").write_text(FUNCTIONS)
    for task in TASKS:
        data = (folder / f"{task}.jsonl").absolute()
        (folder / f"divevlm_{task}.yaml").write_text(TASK.format(task=task, data=data))
        data.write_text("")
    for item in items([ALL], limit, split):
        sample = item.draw.args[0]  # type: ignore[attr-defined]
        row = {
            "sample": item.sample,
            "split": split,
            "seed": sample.scene.seed,
            "question": item.text,
            "answer": item.gold,
        }
        with (folder / f"{item.task}.jsonl").open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    return [f"divevlm_{task}" for task in TASKS]


def visual(document: dict[str, Any]) -> list[Any]:
    """The scene, drawn again from its seed."""
    from divevlm_tiny.scene import scene
    from PIL import Image

    shift = document["split"] == "shift"
    return [Image.fromarray(scene(document["seed"], many=shift, unseen=shift).pixels)]


def text(document: dict[str, Any], lmms_eval_specific_kwargs: dict[str, Any] | None = None) -> str:
    return str(document["question"])


def score(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    from divevlm.experiments.tasks import right

    return {"exact_match": float(right(results[0], document["answer"]))}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="the embedded suite as lmms-eval tasks on local data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=25, help="questions of each task")
    parser.add_argument("--split", default="validation", choices=("validation", "test", "shift"))
    options = parser.parse_args(arguments)
    print("\n".join(write(options.folder, options.limit, options.split)))  # noqa: T201


if __name__ == "__main__":
    from divevlm.terminal import one_line

    raise SystemExit(one_line(main))
