"""The geometry that a selection sees: how many directions the visual states span, and whether the prompt points at the object.

`python -m training.geometry [--model FOLDER] [--n 400]` prints it for the states before each of the first blocks.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from divevlm_tiny.shipped import load
from divevlm_tiny.splits import Sample, questions
from torch import Tensor
from torch.nn import functional

from divevlm.bench.accuracy import chunks
from divevlm.checks import at_least
from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import item_of
from divevlm.terminal import one_line


def effective_rank(x: Tensor) -> float:
    """Exponential of the entropy of the singular values' shares (Roy and Vetterli, 2007). x: [N, d], rows scaled to length 1"""
    values = torch.linalg.svdvals(functional.normalize(x.double(), dim=-1))
    shares = values / values.sum()
    return float(torch.exp(-(shares * shares.clamp_min(1e-30).log()).sum()))


def auc(scores: Tensor, wanted: Tensor) -> float:
    """How often a wanted token scores above another one (ties count half); nan where there is no such pair."""
    good, bad = scores[wanted], scores[~wanted]
    if not len(good) or not len(bad):
        return math.nan
    above = (good[:, None] > bad[None, :]).double() + 0.5 * (good[:, None] == bad[None, :])
    return float(above.mean())


@torch.inference_mode()
def geometry(
    model: Any, processor: Any, samples: list[Sample], layer: int = 2, centre: bool = False
) -> dict[str, float]:
    """Means over the questions, of the states before block `layer` under the final norm.

    rank        effective rank of the visual states
    background  mean cosine of two patches without any object
    objects     mean cosine of two patches of different objects
    auc         of each visual token's mean of its three best cosines to prompt tokens, for patches of the objects asked about
    centre      subtract the mean of the visual states from them, and that of the text states from those
    """
    found: dict[str, list[float]] = {"rank": [], "background": [], "objects": [], "auc": []}
    text = model.model.language_model
    answerer, last = Answerer(model, processor), -1
    for some in chunks(samples):
        inputs, labels = answerer.with_gold([item_of(sample, str(sample.number)) for sample in some])
        states: list[Tensor] = []
        hook = text.layers[layer].register_forward_pre_hook(lambda _, given, to=states: to.append(given[0]))
        try:
            with answerer.under(None):
                model(**inputs)
        finally:
            hook.remove()
        normed = text.norm(states[0])
        for b, sample in enumerate(some):
            visual = inputs["input_ids"][b] == model.config.image_token_id
            asked = inputs["attention_mask"][b].bool() & ~visual & (labels[b] == -100)
            x, q = normed[b, visual], normed[b, asked]
            if centre:
                x, q = x - x.mean(0), q - q.mean(0)
            x, q = functional.normalize(x, dim=-1), functional.normalize(q, dim=-1)
            wanted = torch.zeros(len(x), dtype=torch.bool)
            wanted[sample.patches] = True
            found["auc"].append(auc((x @ q.T).topk(3, dim=1).values.mean(dim=1), wanted))
            if sample.scene.seed != last:
                _of_scene(found, sample, x)
            last = sample.scene.seed
    return {name: torch.tensor(values).nanmean().item() for name, values in found.items()}


def _of_scene(found: dict[str, list[float]], sample: Sample, x: Tensor) -> None:
    owner = torch.full((len(x),), -1)
    for index in range(len(sample.scene.items)):
        owner[torch.from_numpy(sample.scene.cover(index).ravel() > 0)] = -2
    for index in range(len(sample.scene.items)):
        owner[sample.scene.patches(index)] = index
    found["rank"].append(effective_rank(x))
    ground, things = x[owner == -1], owner >= 0
    cosine = ground @ ground.T
    n = len(ground)
    found["background"].append(float((cosine.sum() - cosine.trace()) / max(1, n * (n - 1))))
    apart = owner[things][:, None] != owner[things][None, :]
    found["objects"].append(float((x[things] @ x[things].T)[apart].mean()))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llava", help="llava, or a folder with a tiny-llava of another training")
    parser.add_argument("--n", type=int, default=400, help="questions of the validation split")
    options = parser.parse_args(arguments)
    at_least("--n", options.n, 1)
    model, processor = load(options.model)
    samples = questions("validation", options.n)
    for layer, centre in ((0, False), (1, False), (2, False), (2, True), (3, False), (4, False)):
        found = geometry(model, processor, samples, layer, centre)
        values = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
        print(f"before block {layer}{', centred' if centre else ''}: {values}", flush=True)


if __name__ == "__main__":
    raise SystemExit(one_line(main))
