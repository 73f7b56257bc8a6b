"""CDPruner: beyond attention or similarity, conditional diversity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.dpp import greedy_dpp, kernel
from divevlm.core.selection import Selection
from divevlm.core.top import unit
from divevlm.methods.base import Needs, Signals
from divevlm.methods.views import Apart
from divevlm.methods.words import question

EPS = 1e-6
SEGMENT = 77  # tokens that CLIP's text tower takes


@dataclass(frozen=True, kw_only=True)
class CDPruner(Apart):
    """A determinantal point process: diverse tokens, each as probable as it is relevant to the question.

    text_model, text_tokenizer  a transformers CLIPModel of the vision tower's checkpoint and its tokenizer; relevance is then
                                minus the CLIP cosine, as its authors do. `tokenizer`: the language model's, to read
                                the question from the prompt. Without them: the mean cosine to the prompt's input embeddings
    theta                       strength of relevance in [0, 1), through exp(theta / (2 (1 - theta)) r); None: 0.5 with
                                embeddings; r itself with CLIP, as released
    """

    text_model: Any = field(default=None, repr=False, compare=False)
    text_tokenizer: Any = field(default=None, repr=False, compare=False)
    tokenizer: Any = field(default=None, repr=False, compare=False)
    theta: float | None = None

    name = "cdpruner"
    paper = "Zhang et al., NeurIPS 2025"
    arxiv = "2506.10967"
    reads_text = True
    cost = "O(N² d + K² N)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.theta is None or 0 <= self.theta < 1, "theta", self.theta, "a number in [0, 1)")
        given = [reader is not None for reader in (self.text_model, self.text_tokenizer, self.tokenizer)]
        allowed = "given with text_tokenizer and tokenizer, or none of them"
        require(all(given) or not any(given), "text_model", given, allowed)

    @property
    def needs(self) -> Needs:
        return Needs(embeds=True) if self.text_model is None else Needs(vision=("features",))

    def choose(self, signals: Signals, keep: int) -> Selection:
        if self.text_model is not None:
            cosine, source = -self._clip(signals), "CLIP text tower, negative sign"
        elif len(words := self.given(signals.text_embeds, "embeddings of the prompt")):
            cosine = (unit(signals.visual) @ unit(words).T).mean(dim=1)
            source = "language-model embeddings, positive sign"
        else:
            cosine = torch.zeros_like(signals.visual[:, 0], dtype=torch.float32)
            source = "none: no prompt, diversity alone"
        weight = self.strength(relevance(cosine))  # over all views of the image
        order, gains = [], []
        for tokens, place in self.parts(signals, keep):
            picks, gain = greedy_dpp(kernel(signals.visual[tokens], weight[tokens]), place)
            order.append(tokens[picks])
            gains.append(gain)
        return Selection(torch.cat(order), torch.cat(gains), note=f"text: {source}")

    def strength(self, relevant: Tensor) -> Tensor:
        theta = 0.5 if self.theta is None and self.text_model is None else self.theta
        return relevant if theta is None else torch.exp(theta / (2 * (1 - theta)) * relevant)

    def _clip(self, signals: Signals) -> Tensor:
        """[n] mean cosine, in CLIP's joint space, of each patch to the segments of the question."""
        features = self.tower(signals, "features")
        clip = self.text_model
        weight = clip.visual_projection.weight
        patches = clip.visual_projection(clip.vision_model.post_layernorm(features.to(weight)))
        ids = self.text_tokenizer(question(signals, self.tokenizer))["input_ids"]
        padding = -len(ids) % SEGMENT
        segments = torch.tensor(ids + [0] * padding, device=weight.device).view(-1, SEGMENT)
        mask = torch.tensor([1] * len(ids) + [0] * padding, device=weight.device).view(-1, SEGMENT)
        texts = clip.text_projection(clip.text_model(input_ids=segments, attention_mask=mask).pooler_output)
        return (unit(patches) @ unit(texts).T).mean(dim=1).to(signals.visual.device)


def relevance(cosine: Tensor) -> Tensor:
    """[n] from [n] cosines: (c - min + 1e-6) / (max - min); 1 everywhere if all are alike."""
    low, high = cosine.min(), cosine.max()
    if bool(high - low < EPS):
        return torch.ones_like(cosine)
    return (cosine - low + EPS) / (high - low)
