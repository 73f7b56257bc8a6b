"""Inside the tower: merging block by block, and smaller images."""

import pytest
import torch
from torch import nn

import divevlm
from divevlm.core.bipartite import schedule
from tests.engine.oracle import close
from tests.engine.samples import batch
from tests.zoo import build


@torch.no_grad()
def merged_by_hand(tower, pixels, keep):
    """ToMe as its paper has it, one image, one pair at a time: CLS is never merged, sizes weigh keys and means."""
    blocks = tower.encoder.layers[:-1]
    hidden = tower.pre_layrnorm(tower.embeddings(pixels[None]))[0]
    sizes, members = [1.0] * len(hidden), [[i - 1] for i in range(len(hidden))]
    for block, r in zip(blocks, schedule(len(hidden) - 1, keep, len(blocks)), strict=True):
        attention = block.self_attn
        states = block.layer_norm1(hidden)
        q, k, v = (
            getattr(attention, f"{name}_proj")(states).unflatten(-1, (attention.num_heads, -1)).transpose(0, 1)
            for name in "qkv"
        )
        logits = q @ k.mT * attention.scale + torch.tensor(sizes).log()
        hidden = hidden + attention.out_proj((logits.softmax(-1) @ v).transpose(0, 1).flatten(1))
        metric = nn.functional.normalize(k.mean(dim=0), dim=-1)
        best = {}
        for a in range(2, len(hidden), 2):
            cosines = [float(metric[a] @ metric[b]) for b in range(1, len(hidden), 2)]
            best[a] = max(cosines), 1 + 2 * cosines.index(max(cosines))
        gone = sorted(best, key=lambda a: -best[a][0])[:r]
        rows = [hidden[i] * sizes[i] for i in range(len(hidden))]
        for a in sorted(gone):
            b = best[a][1]
            rows[b], sizes[b], members[b] = rows[b] + rows[a], sizes[b] + sizes[a], members[b] + members[a]
        stay = [i for i in range(0, len(hidden), 2) if i not in gone] + list(range(1, len(hidden), 2))
        hidden = torch.stack([rows[i] / sizes[i] for i in stay])
        sizes, members = [sizes[i] for i in stay], [members[i] for i in stay]
        hidden = hidden + block.mlp(block.layer_norm2(hidden))
    return hidden[1:], [sorted(group) for group in members[1:]]


@torch.no_grad()
def pruned(entry, given, method, keep):
    """The report's only sample, and the rows that enter the first block."""
    entering = []
    with divevlm.prune(entry.model, method, keep=keep) as session:
        handle = session.layers[0].register_forward_pre_hook(lambda m, args: entering.append(args[0]))
        entry.model(**given)
        handle.remove()
    (sample,) = session.report.samples
    return sample, entering[0][0]


@pytest.mark.parametrize("name", ["llava", "llava_576"])
@pytest.mark.parametrize("share", [0.5, 0.25])
def test_tome_merges_in_the_tower_as_the_paper_has_it(name, share):
    entry = build(name)
    given = batch(entry, "single")
    sample, mine = pruned(entry, given, "tome", share)
    keep = round(share * sample.visual)
    rows, members = merged_by_hand(entry.model.model.vision_tower, given["pixel_values"][0], keep)
    with torch.no_grad():
        rows = entry.model.model.multi_modal_projector(rows)
    (segment,) = sample.segments
    assert sorted(segment.merged) == sorted(members)
    assert len(segment.kept) == keep
    start = int((given["input_ids"][0] == entry.model.config.image_token_id).nonzero()[0])
    assert len(mine) == given["input_ids"].shape[1] - sample.visual + keep
    order = sorted(range(keep), key=lambda i: segment.kept.index(next(t for t in segment.kept if t in members[i])))
    close(mine[start : start + keep], rows[order])


def test_a_tower_of_few_blocks_leaves_the_rest_to_the_entry():
    entry = build("llava")  # two blocks are used: 16 -> 8 -> 4
    with divevlm.prune(entry.model, "tome", keep=3) as session, torch.no_grad():
        entry.model(**batch(entry, "single"))
    (segment,) = session.report.samples[0].segments
    assert len(segment.kept) == len(segment.merged) == 3
    assert sorted(token for group in segment.merged for token in group) == list(range(16))


@pytest.mark.parametrize("method", ["tome", "downsample"])
def test_keeping_everything_in_the_tower_is_the_identity(method):
    entry = build("llava")
    given = batch(entry, "mixed")
    with torch.no_grad():
        plain = entry.model(**given).logits
        with divevlm.prune(entry.model, method, keep=1.0):
            assert entry.model(**given).logits.equal(plain)
        assert entry.model(**given).logits.equal(plain)
    assert "forward" not in vars(entry.model.model.vision_tower.encoder.layers[0])


@pytest.mark.parametrize(("keep", "rows", "columns"), [(64, 8, 8), (30, 5, 6), (1, 1, 1)])
def test_downsample_shows_a_smaller_image(keep, rows, columns):
    entry = build("llava_576")
    given = batch(entry, "single")
    tower = entry.model.model.vision_tower
    sample, mine = pruned(entry, given, "downsample", keep)
    patch = entry.model.config.vision_config.patch_size
    small = nn.functional.interpolate(
        given["pixel_values"], (rows * patch, columns * patch), mode="bilinear", antialias=True
    )
    with torch.no_grad():
        features = tower(small, interpolate_pos_encoding=True, output_hidden_states=True).hidden_states[-2][:, 1:]
        want = entry.model.model.multi_modal_projector(features)[0]
    start = int((given["input_ids"][0] == entry.model.config.image_token_id).nonzero()[0])
    close(mine[start : start + rows * columns], want)
    (segment,) = sample.segments
    assert len(segment.kept) == rows * columns <= keep
    assert sorted(token for group in segment.merged for token in group) == list(range(576))


@pytest.mark.parametrize("method", ["tome", "downsample"])
def test_a_batch_is_reduced_as_its_samples_alone(method):
    entry = build("llava")
    given = batch(entry, "several")
    with divevlm.prune(entry.model, method, keep=4) as session, torch.no_grad():
        entry.model(**given)
        together = session.report.samples
        images = given["pixel_values"]
        alone = {**batch(entry, "tall"), "pixel_values": images[2:3]}
        entry.model(**alone)
    assert [s.merged for s in together[1].segments] == [s.merged for s in session.report.samples[0].segments]
    assert len(together[0].segments) == 2


def test_other_towers_are_refused():
    with pytest.raises(
        ValueError, match="^method must be one that works outside the tower, for qwen2_vl, got 'downsample'"
    ):
        divevlm.prune(build("qwen2_vl").model, "downsample", keep=4)
    with pytest.raises(ValueError, match="^method must be one that works outside the tower, for llava_next"):
        divevlm.prune(build("llava_next").model, "tome", keep=4, where="tower")
    with pytest.raises(ValueError, match="^scope must be 'image', 'view' or 'frame' for downsample"):
        divevlm.prune(build("llava").model, "downsample", keep=4, scope="sample")
