"""A method of one's own: settings as fields, one function that chooses."""

from dataclasses import dataclass

import divevlm_tiny as tiny

from divevlm import METHODS, Each, Selection, Signals, prune, ranked


@METHODS.register("middle")
@dataclass(frozen=True, kw_only=True)
class Middle(Each):
    """Keep the tokens nearest to the middle of the picture. `down`: how much further down the middle is taken to be."""

    down: float = 0.0
    name = "middle"

    def choose(self, signals: Signals, keep: int) -> Selection:
        places = signals.cells[:, 1:].float()  # [n, 2] row and column
        middle = (places.amin(dim=0) + places.amax(dim=0)) / 2
        middle[0] += self.down
        return ranked(-(places - middle).norm(dim=1), keep)


model, processor = tiny.load("llava")
sample = tiny.questions("validation", 1)[0]
text = processor.apply_chat_template(
    [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.text}]}],
    add_generation_prompt=True,
    tokenize=False,
)
with prune(model, "middle", keep=16, down=4) as session:
    model(**processor(text=text, images=sample.image, return_tensors="pt"))
report = session.report.samples[0]
print("kept rows and columns:", [report.cells[token][1:] for token in report.kept])
