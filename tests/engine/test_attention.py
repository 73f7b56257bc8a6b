"""Rows of attention from q and k equal the eager maps."""

import pytest
import torch

from divevlm.engine.sequence import Columns
from divevlm.engine.signals import attention_rows, merged_table
from tests.engine.oracle import decoder_layers
from tests.engine.samples import batch
from tests.zoo import FAMILIES, build


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_equal_the_eager_maps(name, side):
    entry = build(name, attn="eager")
    given = batch(entry, "mixed", padding_side=side)
    layers = decoder_layers(entry.model)
    caught = {}

    def note(number):
        def hook(module, args, kwargs):
            caught[number] = args[0], kwargs["position_embeddings"]

        return hook

    handles = [layers[number].register_forward_pre_hook(note(number), with_kwargs=True) for number in (1, 2)]
    with torch.no_grad():
        maps = entry.model(**given, output_attentions=True).attentions
    for handle in handles:
        handle.remove()
    present = given["attention_mask"].bool()
    with torch.no_grad():
        for number, (hidden, tables) in caught.items():
            for row in range(len(present)):
                where = present[row].nonzero()[:, 0]
                queries = where[[0, len(where) // 2, -1]]
                mine = [table.expand(*table.shape[:-3], len(present), -1, -1).select(-3, row) for table in tables]
                mine = [merged_table(table, layers[number].self_attn) for table in mine]
                rows = attention_rows(layers[number], hidden[row], mine, queries, Columns(present[row]))
                torch.testing.assert_close(rows, maps[number][row, :, queries], atol=1e-5, rtol=0)
