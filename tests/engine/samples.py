"""Batches of the shapes that matter."""

from tests.zoo import VIDEO_FAMILIES, clip, inputs, picture

QUESTIONS = ("what is this ?", "where is the red thing in the picture ?", "is it blue ?")


def sample(number, *images, text=None, videos=()):
    return {"text": text or QUESTIONS[number % 3], "images": list(images), "videos": list(videos)}


def batch(entry, shape, padding_side="left"):
    wide, tall, small = picture(1, 150, 80), picture(2, 70, 140), picture(3, 60, 60)
    samples = {
        "single": [sample(0, wide)],
        "tall": [sample(0, tall)],
        "mixed": [sample(0, wide), sample(1, tall), sample(2, small)],
        "several": [sample(0, wide, small), sample(1, tall)],
        "some-text-only": [sample(1, wide), sample(2)],
        "video": [sample(0, videos=[clip(5, 4, 80, 60)])],
        "videos": [sample(0, videos=[clip(5, 4, 80, 60)]), sample(1, videos=[clip(6, 4, 60, 90)])],
    }[shape]
    return inputs(entry, samples, padding_side=padding_side)


def shapes(name):
    return ("single", "tall", "mixed", "several", "some-text-only") + (
        ("video", "videos") if name in VIDEO_FAMILIES else ()
    )
