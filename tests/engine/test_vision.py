"""What the tower is said to think of a visual token is what it thinks of the patches behind that token."""

import pytest
import torch

import divevlm
from divevlm.methods.base import Needs
from divevlm.models import FAMILIES as ADAPTERS
from tests.engine.oracle import decoder_layers
from tests.engine.samples import batch
from tests.engine.spy import Spy
from tests.zoo import FAMILIES, VIDEO_FAMILIES, build

ALL = Needs(vision=("saliency", "first_saliency", "keys", "features"))
CASES = [(name, shape) for name in FAMILIES for shape in ("mixed", *(["videos"] if name in VIDEO_FAMILIES else []))]


def family_of(entry):
    return ADAPTERS.get(entry.model.config.model_type)()


def shown(entry, given, **options):
    """Signals of each sample, all its tokens in one group."""
    spy = Spy(keep=1, scope="sample", wants=ALL, cuts=(0,), **options)
    with divevlm.prune(entry.model, spy), torch.no_grad():
        entry.model(**given)
    return spy.seen[0]


def entering(entry, given, hooks=()):
    """[B, S, d] what enters the first block, with hooks on the tower."""
    caught = []
    handles = [block.register_forward_hook(hook, prepend=True) for block, hook in hooks]
    handles.append(decoder_layers(entry.model)[0].register_forward_pre_hook(lambda m, args: caught.append(args[0])))
    with torch.no_grad():
        entry.model(**given)
    for handle in handles:
        handle.remove()
    return caught[0]


def visual_rows(entry, given, states):
    """[tokens of the batch, d] in order, without newlines."""
    with divevlm.prune(entry.model, keep=1.0, scope="sample") as session, torch.no_grad():
        entry.model(**given)
    config = entry.model.config
    tokens = [getattr(config, name, None) for name in ("image_token_id", "video_token_id")]
    rows = []
    for row, sample in enumerate(session.report.samples):
        mask = torch.stack([given["input_ids"][row] == token for token in tokens if token is not None]).any(dim=0)
        rows.append(states[row][mask][[i for segment in sample.segments for i in segment.kept]])
    return torch.cat(rows)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_patch_belongs_to_the_tokens_that_change_with_it(name, shape):
    """Disturb one patch of the tower's output: the visual tokens that change are those that its features are shown for."""
    entry = build(name)
    given = batch(entry, shape)
    family = family_of(entry)
    block = family.tower_blocks(entry.model)[family.feature_block(entry.model)]
    cls = family.has_cls(entry.model)
    plain = visual_rows(entry, given, entering(entry, given))
    before = torch.cat([signals.vision.features for signals in shown(entry, given)])
    size = []
    entering(entry, given, [(block, lambda m, args, out: size.append(out.shape))])
    flat = size[0][:-1].numel()
    noise = torch.randn(size[0][-1], generator=torch.Generator().manual_seed(0))
    for patch in torch.linspace(cls, flat - 1, 7).long().tolist():
        if cls and patch % size[0][1] == 0:
            patch += 1

        def disturb(module, args, out, patch=patch):
            out = out.contiguous().clone()
            out.view(-1, out.shape[-1])[patch] += noise
            return out

        after = visual_rows(entry, given, entering(entry, given, [(block, disturb)]))
        handle = block.register_forward_hook(disturb, prepend=True)
        features = torch.cat([signals.vision.features for signals in shown(entry, given)])
        handle.remove()
        changed = (after - plain).abs().amax(dim=1) > 0
        assert changed.equal((features - before).abs().amax(dim=1) > 0)


@pytest.mark.parametrize("name", ["llava", "llava_576", "llava_next", "llava_next_video"])
def test_projected_features_are_what_enters_the_language_model(name):
    entry = build(name)
    given = batch(entry, "mixed")
    rows = visual_rows(entry, given, entering(entry, given))
    groups = shown(entry, given)
    with torch.no_grad():
        mine = torch.cat([signals.vision.project(signals.vision.features) for signals in groups])
    torch.testing.assert_close(mine, rows, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("qwen")])
def test_saliency_is_that_of_the_eager_maps(name):
    entry = build(name, attn="eager")
    given = batch(entry, "mixed")
    family = family_of(entry)
    number = family.feature_block(entry.model)
    maps = {}

    def note(where):
        return lambda module, args, out: maps.update({where: out[1]})

    blocks = family.tower_blocks(entry.model)
    attention = [getattr(blocks[i], "self_attn", None) or blocks[i].attention for i in (0, number)]
    hooks = list(zip(attention, (note("first"), note("used")), strict=True))
    entering(entry, given, hooks)
    arranged = []
    kind = {name: value for name, value in given.items() if name in ("image_sizes", "batch_num_images")}
    for where in ("first", "used"):
        heads = maps[where].mean(dim=1)
        received = heads[:, 0, 1:] if family.has_cls(entry.model) else heads.mean(dim=1)
        arranged.append(family.arrange(entry.model, "image", kind, received[..., None].contiguous())[:, 0])
    groups = shown(entry, given, newlines="drop")
    for want, got in zip(arranged, ("first_saliency", "saliency"), strict=True):
        mine = torch.cat([getattr(signals.vision, got) for signals in groups])
        torch.testing.assert_close(mine, want[want != 0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", ["mixed", "videos"])
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_qwen_saliency_is_attention_received_in_its_own_segment(name, shape):
    """The maps of each frame (or window) come out one after another; columns are averaged over heads and queries."""
    entry = build(name, attn="eager")
    given = batch(entry, shape)
    family = family_of(entry)
    module = __import__(type(entry.model).__module__, fromlist=["eager_attention_forward"])
    columns, eager = [], module.eager_attention_forward
    block = family.tower_blocks(entry.model)[-1]

    def spy(owner, *args, **kwargs):
        out, weights = eager(owner, *args, **kwargs)
        if owner is block.attn:
            columns.append(weights.mean(dim=(0, 1, 2)))
        return out, weights

    module.eager_attention_forward = spy
    try:
        entering(entry, given)
    finally:
        module.eager_attention_forward = eager
    kind = "video" if shape == "videos" else "image"
    want = family.arrange(entry.model, kind, given, torch.cat(columns)[None, :, None])[:, 0]
    mine = torch.cat([signals.vision.saliency for signals in shown(entry, given)])
    torch.testing.assert_close(mine, want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_batch_shows_each_sample_what_it_sees_alone(name, shape):
    entry = build(name)
    given = batch(entry, shape)
    groups = shown(entry, given)
    assert len({len(signals.visual) for signals in groups}) > 1 or name in ("llava", "llava_576") or shape == "videos"
    for signals in groups:
        assert len(signals.vision.saliency) == len(signals.visual) == len(signals.vision.keys)
        assert torch.isfinite(signals.vision.saliency).all()
    first = torch.cat([signals.vision.features for signals in groups])
    assert len(first.unique(dim=0)) > len(first) // 2


def test_beams_show_each_copy_the_same():
    entry = build("llava_next")
    given = batch(entry, "mixed")
    spy = Spy(keep=1, scope="sample", wants=ALL, cuts=(0,))
    with divevlm.prune(entry.model, spy):
        entry.model.generate(**given, num_beams=2, do_sample=False, max_new_tokens=2)
    groups = spy.seen[0]
    if len(groups) == 6:
        for one, two in zip(groups[::2], groups[1::2], strict=True):
            assert one.vision.features.equal(two.vision.features)
    alone = shown(entry, given)
    torch.testing.assert_close(groups[0].vision.features, alone[0].vision.features)
    torch.testing.assert_close(groups[-1].vision.features, alone[-1].vision.features)


def test_an_encoding_that_failed_leaves_nothing_for_the_next():
    entry = build("llava")
    given = batch(entry, "single")
    (want,) = shown(entry, given)
    spy = Spy(keep=1, scope="sample", wants=ALL, cuts=(0,))

    def fail(*_):
        raise RuntimeError("inside")

    with divevlm.prune(entry.model, spy), torch.no_grad():
        handle = entry.model.model.multi_modal_projector.register_forward_pre_hook(fail)
        other = batch(entry, "tall")
        with pytest.raises(RuntimeError, match="inside"):
            entry.model(**other)
        handle.remove()
        entry.model.model.vision_tower(other["pixel_values"])
        entry.model(**given)
    assert spy.seen[0][0].vision.features.equal(want.vision.features)
