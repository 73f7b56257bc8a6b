"""Stand-ins for what the hub holds: the ten benchmarks in their schema with drawn pictures and clips, and tiny checkpoints."""

import json

import av
import datasets
import numpy as np
from datasets import Dataset, DatasetDict, Features, Image, Sequence, Value
from transformers import CLIPConfig, CLIPModel

from ...zoo import build, clip, picture

MME = ("count", "OCR", "code_reasoning")  # two of perception, one of cognition
OCR = ("Regular Text Recognition", "Doc-oriented VQA", "Key Information Extraction")
TEXT, IMAGE, TEXTS = Value("string"), Image(), Sequence(Value("string"))


def drawn(number):
    return picture(number, 84 + 14 * (number % 3), 70)


def rows(count, features, make):
    return Dataset.from_list([make(i) for i in range(count)], features=Features(features))


def mme():
    features = {"question_id": TEXT, "image": IMAGE, "question": TEXT, "answer": TEXT, "category": TEXT}
    return rows(
        4 * len(MME),
        features,
        lambda i: {
            "question_id": f"{MME[i // 4]}/{i // 2}.png",
            "image": drawn(i // 2),
            "question": f"Is there number {i}? Please answer yes or no.",
            "answer": "Yes" if i % 2 else "No",
            "category": MME[i // 4],
        },
    )


def pope():
    features = dict.fromkeys(("id", "question_id", "question", "answer", "image_source", "category"), TEXT)
    return rows(
        12,
        {**features, "image": IMAGE},
        lambda i: {
            **dict.fromkeys(("id", "question_id", "image_source"), str(i)),
            "question": f"Is there a dog {i} in the image?",
            "answer": "yes" if i % 2 else "no",
            "category": ("adversarial", "popular", "random")[i // 4],
            "image": drawn(i),
        },
    )


def gqa():
    features = {"id": TEXT, "imageId": TEXT, "question": TEXT, "answer": TEXT}
    return rows(6, features, lambda i: {"id": str(i), "imageId": str(i), "question": f"What is {i}?", "answer": "red"})


def gqa_pictures():
    return rows(6, {"id": TEXT, "image": IMAGE}, lambda i: {"id": str(i), "image": drawn(i)})


def scienceqa():
    features = {"image": IMAGE, "question": TEXT, "hint": TEXT, "choices": TEXTS, "answer": Value("int64")}
    return rows(
        6,
        features,
        lambda i: {
            "image": drawn(i),
            "question": f"Which is {i}?",
            "hint": "Look." if i % 2 else "",
            "choices": ["one", "two", "three"],
            "answer": i % 3,
        },
    )


def textvqa():
    features = {"question_id": Value("int64"), "image": IMAGE, "question": TEXT, "answers": TEXTS, "ocr_tokens": TEXTS}
    return rows(
        6,
        features,
        lambda i: {
            "question_id": i,
            "image": drawn(i),
            "question": f"what does sign {i} say?",
            "answers": ["stop"] * 10,
            "ocr_tokens": ["STOP", str(i)],
        },
    )


def ocrbench():
    features = {"image": IMAGE, "question": TEXT, "answer": TEXTS, "dataset": TEXT, "question_type": TEXT}
    return rows(
        2 * len(OCR),
        features,
        lambda i: {
            "image": drawn(i),
            "question": "what is written in the image?",
            "answer": [""] if i % 2 else ["never said"],  # the empty word is in every answer
            "dataset": "IIIT5K",
            "question_type": OCR[i // 2],
        },
    )


def vqa():
    answers = [{"answer": TEXT, "answer_confidence": TEXT, "answer_id": Value("int64")}]
    features = {"question_id": Value("int64"), "image": IMAGE, "question": TEXT, "answers": answers}
    features |= dict.fromkeys(("question_type", "multiple_choice_answer", "answer_type"), TEXT)
    return rows(
        6,
        {**features, "image_id": Value("int64")},
        lambda i: {
            "question_id": i,
            "image_id": i,
            "image": drawn(i),
            "question": f"What is {i}?",
            "question_type": "what is",
            "multiple_choice_answer": "red",
            "answer_type": "other",
            "answers": [{"answer": "red", "answer_confidence": "yes", "answer_id": k} for k in range(10)],
        },
    )


def vizwiz():
    features = {"question_id": TEXT, "image": IMAGE, "question": TEXT, "answers": TEXTS, "category": TEXT}
    return rows(
        6,
        features,
        lambda i: {
            "question_id": str(i),
            "image": drawn(i),
            "question": f"what is this {i}?",
            "answers": ["unanswerable"] * 10,
            "category": "other",
        },
    )


def mvbench():
    features = {"video": TEXT, "question": TEXT, "candidates": TEXTS, "answer": TEXT}
    return rows(
        2,
        features,
        lambda i: {"video": f"{i}.mp4", "question": "What moved?", "candidates": ["cat", "dog"], "answer": "dog"},
    )


def videomme():
    named = ("video_id", "duration", "domain", "sub_category", "url", "videoID", "question_id", "task_type", "question")
    return rows(
        6,
        {**dict.fromkeys((*named, "answer"), TEXT), "options": TEXTS},
        lambda i: {
            **dict.fromkeys(named, str(i)),
            "videoID": str(i % 2),
            "duration": ("short", "medium", "long")[i // 2],
            "domain": "Knowledge",
            "sub_category": "Humanity & History",
            "task_type": "Counting Problem",
            "question": "What moved?",
            "options": ["A. Cat.", "B. Dog.", "C. Cow.", "D. Hen."],
            "answer": "ABCD"[i % 4],
        },
    )


HUB = {  # path and split -> rows
    "lmms-lab-encoder/MME": ("test", mme),
    "lmms-lab-encoder/POPE": ("test", pope),
    "lmms-lab-encoder/GQA": ("testdev", gqa),
    "lmms-lab-encoder/ScienceQA": ("test", scienceqa),
    "lmms-lab-encoder/textvqa": ("validation", textvqa),
    "echo840/OCRBench": ("test", ocrbench),
    "lmms-lab-encoder/VQAv2": ("validation", vqa),
    "lmms-lab-encoder/VizWiz-VQA": ("val", vizwiz),
    "OpenGVLab/MVBench": ("train", mvbench),
    "lmms-eval/Video-MME": ("test", videomme),
}
LOADED = []  # every data set that was asked for, in order
_load = datasets.load_dataset


def load_dataset(path, name=None, split=None, **options):
    if path not in HUB:
        return _load(path, name, split=split, **options)
    LOADED.append((path, name))
    where, make = HUB[path]
    found = DatasetDict({where: gqa_pictures() if name == "testdev_balanced_images" else make()})
    return found if split is None else found[split]


def video(file, seconds=4, fps=4, size=(112, 84)):
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        (stream.width, stream.height), stream.pix_fmt = size, "yuv420p"
        for pixels in clip(0, seconds * fps, *size):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode())
    return str(file)


def videos(home):
    """Where the tasks look for them, below HF_HOME."""
    from lmms_eval.tasks.mvbench.utils import DATA_LIST

    for number in range(2):
        for folder in set(DATA_LIST.values()):
            video(home / "mvbench_video" / folder / f"{number}.mp4", seconds=1 + number)
        video(home / "videomme" / "data" / f"{number}.mp4", seconds=1 + number)


STAND_INS = {  # the paper's checkpoints -> the zoo's model of that class
    "llava-hf/llava-1.5-7b-hf": "llava_576",
    "llava-hf/llava-1.5-13b-hf": "llava_576",
    "llava-hf/llava-v1.6-vicuna-7b-hf": "llava_next",
    "llava-hf/llava-v1.6-vicuna-13b-hf": "llava_next",
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": "llava_onevision",
    "Qwen/Qwen2-VL-7B-Instruct": "qwen2_vl",
}


def text_tower(folder):
    """A CLIP model as wide as the zoo's towers, with a tokenizer."""
    entry = build("llava_576")
    tokens = entry.processor.tokenizer
    small = {"hidden_size": entry.model.config.vision_config.hidden_size, "intermediate_size": 16}
    small |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {name: getattr(tokens, name) for name in ("eos_token_id", "bos_token_id", "pad_token_id")}
    config = CLIPConfig(
        text_config=small | ends | {"vocab_size": len(tokens), "max_position_embeddings": 77},
        vision_config=small | {"image_size": 336, "patch_size": 14},
        projection_dim=8,
    )
    CLIPModel(config).save_pretrained(folder)
    tokens.save_pretrained(folder)


def checkpoint(name, folder, layers=20):
    """A tiny model of the real class, deep enough for the paper's budgets, saved with its processor."""
    entry = build(name, layers=layers)
    entry.model.save_pretrained(folder)
    entry.processor.save_pretrained(folder)
    for path in folder.glob("*processor_config.json"):  # the zoo's class does without torchvision
        path.write_text(path.read_text().replace('"Qwen2Frames"', '"Qwen2VLVideoProcessor"'))
    if name.startswith(
        "llava"
    ):  # on the hub the template is the processor's alone; a .jinja would be the tokenizer's too
        template = (folder / "chat_template.jinja").read_text()
        (folder / "chat_template.jinja").unlink()
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    return folder
