"""An explorer page from Python: python examples/explore.py [FILE]"""

import sys
from pathlib import Path

import divevlm_tiny as tiny

from divevlm.viz import ask, page, settings

file = Path(sys.argv[1] if len(sys.argv) > 1 else "page.html")
model, processor = tiny.load("llava")
sample = tiny.questions("validation", 1)[0]
runs = settings(["dive", "dive-no-update", "random"], keeps=[32, 8], lams=[0.0])
asked = ask(model, processor, sample.text, [sample.image], [("all tokens", None), *runs], max_new_tokens=6)
file.write_text(page(asked), encoding="utf-8")
print(f"open {file} in a browser")
