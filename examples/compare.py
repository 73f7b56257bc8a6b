"""Several methods on one question: answers, memory, time."""

import divevlm_tiny as tiny

from divevlm.methods import method_of
from divevlm.viz import ask

model, processor = tiny.load("llava")
sample = tiny.questions("validation", 3)[2]
methods = [(name, method_of(name, 32, {})) for name in ("dive", "fastv", "visionzip", "random")]
asked = ask(model, processor, sample.text, [sample.image], [("all tokens", None), *methods], max_new_tokens=6)

print(sample.text, "->", sample.answer)
for answer in asked.answers:
    memory = "" if answer.report is None else f"KV {answer.report.kv_bytes / 2**20:.2f} MB"
    print(f"{answer.label:<12}{answer.text:<16}{1e3 * answer.prefill_seconds:6.0f} ms  {memory}")
