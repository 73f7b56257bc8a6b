"""The pictures of the README, from the embedded model: python examples/pictures.py [FOLDER]

The questions are the first two of the validation split that DIVE answers with 16 tokens and frozen scores don't (fewer,
if there are fewer among the first 240); they show a difference, they don't measure it.
"""

import sys
from pathlib import Path

import divevlm_tiny as tiny

from divevlm.methods import method_of
from divevlm.viz import ask, evolution, gallery, masks, rendered

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
tries = int(sys.argv[2]) if len(sys.argv) > 2 else 240
folder.mkdir(parents=True, exist_ok=True)
model, processor = tiny.load("llava")

rows, seen = [], set()
for sample in tiny.questions("validation", tries):
    if sample.scene.seed in seen or len(rows) == 2:  # one question a scene
        continue
    runs = [(name, method_of(name, 16, {"trace": True})) for name in ("dive", "dive-no-update")]
    asked = ask(model, processor, sample.text, [sample.image], runs, max_new_tokens=6)
    dive, frozen = asked.answers
    if dive.text == sample.answer != frozen.text:
        seen.add(sample.scene.seed)
        rows.append((asked, frozen, dive, sample))
if not rows:
    rows.append((asked, frozen, dive, sample))

(folder / "gallery.png").write_bytes(rendered(gallery([row[:3] for row in rows]), dpi=120))
asked, frozen, dive, sample = rows[0]
(folder / "evolution.png").write_bytes(rendered(evolution(asked, dive), dpi=120))
names = ("dive", "fastv", "visionzip", "prunesid", "random")
chosen = [(name, method_of(name, 16, {})) for name in names]
several = ask(model, processor, sample.text, [sample.image], chosen, max_new_tokens=6)
(folder / "methods.png").write_bytes(rendered(masks(several), dpi=120))
print("wrote", ", ".join(sorted(file.name for file in folder.iterdir())), "to", folder)
