"""Blocks spread over devices: indices, masks and signals follow the tensors. On pretended devices: no GPU is needed."""

import pytest
import torch

import divevlm
from divevlm.methods import METHODS
from tests.engine.devices import Placed, plain, spread
from tests.engine.oracle import close
from tests.engine.samples import batch
from tests.zoo import build

GREEDY = {"max_new_tokens": 3, "do_sample": False}


def outputs(entry, given, method, **options):
    with divevlm.prune(entry.model, method, keep=4, **options) as session, torch.no_grad():
        logits = entry.model(**given).logits
        kept = [sample.kept for sample in session.report.samples]
        ids = entry.model.generate(**given, **GREEDY)
    return plain(logits), kept, plain(ids)


@pytest.mark.parametrize("border", [1, 2, 3])
@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_vl", "qwen3_vl", "idefics3"])
def test_dive_on_blocks_of_two_devices(name, border):
    same(build(name), build(name, fresh=True), "dive", border)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("dive",)])
def test_every_method_on_blocks_of_two_devices(method):
    same(build("llava"), build("llava", fresh=True), method, 2)


def test_entry_placement_on_blocks_of_two_devices():
    same(build("llava"), build("llava", fresh=True), "dive", 1, placement="entry")


def same(entry, other, method, border, **options):
    given = batch(entry, "mixed")
    want = outputs(entry, given, method, **options)
    text = divevlm.prune(other.model, keep=1).text
    with spread(other, text, border):
        result = outputs(other, {name: Placed(value, 0) for name, value in given.items()}, method, **options)
    close(result[0], want[0])
    assert result[1] == want[1]
    assert result[2].equal(want[2])


def test_pretended_devices_do_refuse():
    one, two = Placed(torch.ones(2), 0), Placed(torch.ones(2), 1)
    with pytest.raises(RuntimeError, match="different devices"):
        one + two
    with pytest.raises(RuntimeError, match="different devices"):
        torch.ones(2)[Placed(torch.tensor([0]), 1)]
    assert str((one + two.to(one.device)).device) == "cuda:0"
