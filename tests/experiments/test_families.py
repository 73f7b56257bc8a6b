"""Every family answers batches of pictures and clips as it answers one at a time."""

import numpy as np
import pytest

from divevlm.experiments.answering import Answerer
from divevlm.experiments.tasks import Item
from divevlm.media import Video
from divevlm.methods import method_of

from ..zoo import FAMILIES, VIDEO_FAMILIES, build, clip, picture

SIZES = ((112, 84), (84, 140), (112, 112))


def images(n=3):
    return [
        Item(
            "see", str(i), "what is this ?" + " now" * i, "a b"[: 1 + 2 * (i % 2)], lambda i=i: [picture(i, *SIZES[i])]
        )
        for i in range(n)
    ]


def clips(n=2):
    def draw(i):
        frames = clip(i, 4, 84, 84)
        return [Video(np.asarray(frames), list(range(4)), 4, 2.0)]

    return [Item("watch", str(i), "what moved ?", "a", lambda i=i: draw(i)) for i in range(n)]


def compare(name, some):
    entry = build(name)
    method = method_of("dive", 6, {"scope": "sample"})
    together = Answerer(entry.model, entry.processor)
    alone = Answerer(entry.model, entry.processor, shared=False)
    together.generate(some, None, 4)  # so that there is something to share
    made, forced = together.generate(some, method, 4), together.forced(some, method)
    for item, one, other in zip(some, made, forced, strict=True):
        (said,), (told,) = alone.generate([item], method, 4), alone.forced([item], method)
        assert (one.prediction, one.kept) == (said.prediction, said.kept)
        assert other.likelihood == pytest.approx(told.likelihood, abs=2e-3)
        assert told.kept == said.kept


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llava_576"])
def test_pictures(name):
    compare(name, images())


@pytest.mark.parametrize("name", VIDEO_FAMILIES)
def test_clips(name):
    compare(name, clips())


def test_a_family_without_videos_says_so():
    entry = build("llava")
    with pytest.raises(ValueError, match="model must be of a family that takes videos, for these, got 'llava'"):
        Answerer(entry.model, entry.processor).generate(clips(1), None, 2)
