"""SparseVLM: the prompt tokens that are about the image rate it; what is pruned is recycled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from divevlm.checks import require
from divevlm.core.cluster import density_peaks, means
from divevlm.core.schedules import scaled_blocks
from divevlm.core.selection import Rows, Selection
from divevlm.core.sparsevlm import raters, recycled, sparse_stages, split_total
from divevlm.core.top import top_k
from divevlm.methods.base import Needs, Positions, Signals
from divevlm.methods.each import ranked
from divevlm.methods.rows import joined, kept_rows
from divevlm.methods.staged import Staged
from divevlm.methods.words import rows_behind_image

AFTER = (2, 6, 15)  # of 32 blocks


@dataclass(frozen=True, kw_only=True)
class SparseVLM(Staged):
    """After blocks 2, 6 and 15 (of 32): the tokens that the rating prompt tokens attend to most; of the others, the better
    third is clustered and its means go on behind the kept.

    version  "1" with recycling, or "plus": none, original positions, attention freed from RoPE's own pull, best heads only
    match    `keep` is what is left in the end ("final", clusters included) or the authors' nominal budget ("layer-mean":
             their lists for 192, 128, 96 and 64 of 576; others in a line between them, scaled by N)
    """

    version: Literal["1", "plus"] = "1"

    name = "sparsevlm"
    paper = "Zhang et al., ICML 2025"
    arxiv = "2410.04417"
    merges = True
    cost = "O(M N d) x 3"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.version in ("1", "plus"), "version", self.version, "'1' or 'plus'")

    @property
    def needs(self) -> Needs:
        return Needs(attention="text", embeds=True, gravity=self.version == "plus")

    @property
    def default_positions(self) -> Positions:
        return "keep" if self.version == "plus" else "compact"

    def blocks(self, blocks: int, default: int) -> tuple[int, ...]:
        return scaled_blocks(AFTER, blocks)

    def stages(self, keep: int, tokens: int, blocks: int) -> tuple[int, ...]:
        # a shallow model has the last cuts only
        stages = sparse_stages(keep, tokens, mean=self.match == "layer-mean", plus=self.version == "plus")
        return stages[-len(self.blocks(blocks, 2)) :]

    def details(self, keep: int, tokens: int, blocks: int, views: int) -> dict[str, Any]:
        stages = self.stages(keep, tokens, blocks)
        details: dict[str, Any] = {"after": [cut - 1 for cut in self.blocks(blocks, 2)], "stages": list(stages)}
        if self.version == "1":
            pairs = zip((tokens, *stages), stages, strict=False)
            details["kept"] = [split_total(total, before)[0] for before, total in pairs]
        return details

    def choose(self, signals: Signals, keep: int) -> Selection:
        scores = self.scores(signals)
        if self.version == "plus":
            note = "" if signals.gravity is not None else "without the correction for RoPE"
            return replace(ranked(scores, keep), note=note)
        hidden = self.given(signals.hidden, "hidden states")
        kept, clusters = split_total(keep, len(scores))
        order = top_k(scores, len(scores))
        picks, pruned = order[:kept], order[kept:]
        if not clusters:
            return Selection(picks, scores[picks])
        better = pruned[: max(clusters, recycled(len(pruned))[0])]
        centres, cluster = density_peaks(hidden[better], clusters)
        values = means(hidden[better], cluster, clusters).to(hidden.dtype)
        members = [better[cluster == c].sort().values.tolist() for c in range(clusters)]
        order = torch.cat([picks, better[centres]])
        rows = joined([kept_rows(picks.sort().values, hidden), Rows(better[centres], values, members)])
        return Selection(order, scores[order], rows=rows)

    def scores(self, signals: Signals) -> Tensor:
        """[n] attention that each token gets from the raters."""
        attention = self.given(signals.attention, "attention rows of a block before the cut").float()
        text = self.given(signals.text_embeds, "embeddings of the prompt")
        visual = signals.all_embeds if signals.all_embeds is not None else signals.visual_embeds
        rating = torch.zeros(1, dtype=torch.long)  # without a prompt the only row of attention is its last position's
        if len(text):
            behind = rows_behind_image(signals).to(text.device)
            rating = behind[raters(self.given(visual, "embeddings of the image"), text[behind])]
        rows = attention[:, rating.to(attention.device)]  # [heads, raters, n]
        if self.version == "1":
            return rows.mean(dim=(0, 1))
        if signals.gravity is not None:
            pull = signals.gravity[rating.to(signals.gravity.device)].to(rows.device)
            rows = rows / pull.clamp_min(0.1 * float(pull.max()))  # a pull near 0 or below it means nothing
        heads = max(1, round(14 / 32 * len(rows)))
        return rows[top_k(rows.sum(dim=(1, 2)), heads)].mean(dim=(0, 1))
