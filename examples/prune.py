"""Prune a model for the length of a `with` block. Here the embedded one; any supported transformers model works the same."""

import divevlm_tiny as tiny

import divevlm

model, processor = tiny.load("llava")
sample = tiny.questions("validation", 1)[0]
turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.text}]}]
text = processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
inputs = processor(text=text, images=sample.image, return_tensors="pt")

with divevlm.prune(model, "dive", keep=64) as session:
    output = model.generate(**inputs, max_new_tokens=6, do_sample=False)

print(sample.text, processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
print(session.report)
print("first picks:", session.report.samples[0].order[:8])
