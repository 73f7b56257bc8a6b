"""MMTok: multimodal coverage maximization."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.coverage import greedy_coverage
from divevlm.core.selection import Selection
from divevlm.core.top import unit
from divevlm.methods.base import Needs, Signals
from divevlm.methods.views import PerView
from divevlm.methods.words import content_rows, word_ids


@dataclass(frozen=True, kw_only=True)
class MMTok(PerView):
    """Tokens that cover the question's words and the image's other tokens best (greedy maximum coverage).

    tokenizer           of the language model: cover the question's content words; None: every prompt token
    embeddings          the language model's embedding table: words are tokenized by themselves and looked up there, as the
                        authors do; None: the prompt's own rows of these words
    alpha               weight of covering the image
    temperature         of similarities between tokens, text_temperature: to words (None: 0.02, or 0.01 where the family
                        pools rows behind its tower, as the authors set it for Qwen)
    padding             shares of an image's side that are bars above (and below) and to the left (and right) of the picture:
                        patches that lie wholly in them are no candidates, as the authors do on LLaVA-1.5
    """

    tokenizer: Any = field(default=None, repr=False, compare=False)
    embeddings: Any = field(default=None, repr=False, compare=False)
    alpha: float = 0.5
    temperature: float = 0.2
    text_temperature: float | None = None
    padding: tuple[float, float] = (0.0, 0.0)

    name = "mmtok"
    needs = Needs(embeds=True, vision=("features",))
    paper = "Dong et al., ICLR 2026"
    arxiv = "2508.18264"
    reads_text = True
    cost = "O(K (M + N) N)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha >= 0, "alpha", self.alpha, "a number of at least 0")
        require(self.temperature > 0, "temperature", self.temperature, "a positive number")
        positive = self.text_temperature is None or self.text_temperature > 0
        require(positive, "text_temperature", self.text_temperature, "a positive number")
        bars = len(self.padding) == 2 and all(0 <= share < 0.5 for share in self.padding)
        require(bars, "padding", self.padding, "two shares from 0 to below 0.5")
        alone = self.embeddings is not None and self.tokenizer is None
        require(not alone, "embeddings", type(self.embeddings).__name__, "given with a tokenizer")

    def _words(self, signals: Signals) -> Tensor:
        """[m, d] what is to be covered of the question."""
        if self.embeddings is None:
            return self.given(signals.text_embeds, "embeddings of the prompt")[content_rows(signals, self.tokenizer)]
        table: Tensor = self.embeddings.weight.detach()
        return table[word_ids(signals, self.tokenizer).to(table.device)].to(signals.visual.device)

    def choose_view(self, signals: Signals, keep: int) -> Selection:
        inside = self._inside(signals)
        if len(inside) < len(signals.visual) and len(inside) >= keep:
            selection = self._covering(signals.of(inside), keep)
            return replace(selection, order=inside[selection.order])
        return self._covering(signals, keep)

    def _inside(self, signals: Signals) -> Tensor:
        """[r] tokens that show something of the picture."""
        rows, columns = signals.cells[:, 1], signals.cells[:, 2]
        shown = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for of, share in zip((rows, columns), self.padding, strict=True):
            side = int(of.max()) + 1
            bar = int(share * side + 1e-9)
            shown &= (of >= bar) & (of < side - bar)
        return shown.nonzero()[:, 0].to(signals.visual.device)

    def _covering(self, signals: Signals, keep: int) -> Selection:
        features = unit(self.tower(signals, "features"))
        words = self._words(signals)
        pools = signals.vision is not None and signals.vision.project is None
        heat = self.text_temperature or (0.01 if pools else 0.02)
        to_words = torch.softmax(unit(words) @ unit(signals.visual).T / heat, dim=1) / max(1, len(words))
        to_image = torch.softmax(features @ features.T / self.temperature, dim=1) / len(features)
        return Selection(*greedy_coverage(torch.cat([to_words, self.alpha * to_image]), keep))
