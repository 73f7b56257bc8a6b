"""What methods hear of a prompt: the bare question, its content words, the rows and ids of these."""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Metaspace
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

from divevlm.experiments.settings import Setting
from divevlm.methods.cdpruner import CDPruner
from divevlm.methods.mmtok import MMTok
from divevlm.methods.readers import clip_of
from divevlm.methods.resprune import ResPrune
from divevlm.methods.words import STOP, content, content_rows, question, word_ids

from ..zoo import build, inputs, picture
from .signals import choose, frames, plain, tiled

SHORT = "Answer the question using a single word or phrase."
LETTER = "Answer with the option's letter from the given choices directly."


def sentencepiece():
    """Words with a mark in front where a space was, as Llama's tokenizer has them; without one at the head of a line."""
    words = [
        "Describe",
        "the",
        "human",
        "user",
        "of",
        "this",
        "system",
        "assistant",
        "What",
        "is",
        "a",
        "dog",
        "doing",
        "now",
        "being",
    ]
    known = ["<unk>", "<s>", "\n", ".", "?", ":", "ASSISTANT", *words, *(f"▁{word}" for word in words)]
    known += [f"▁{mark}" for mark in ("ASSISTANT", "Answer", "question", "using", "single", "word", "or", "phrase")]
    known += ["Answer", "▁"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    split = pre_tokenizers.Metaspace(prepend_scheme="never")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.Split("\n", "isolated"), split]
    )
    raw.decoder = Metaspace(prepend_scheme="never")
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>")


def asked(tokenizer, text, before="<s>"):
    """Signals of a prompt: what stands before the image, then the text."""
    first, behind = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, text))
    ids = torch.tensor([*first, *behind])
    signals = plain()
    rows = torch.randn(len(ids), signals.text.shape[1], generator=torch.Generator().manual_seed(1))
    later = torch.arange(len(ids)) >= len(first)
    return replace(signals, ids=ids, later=later, text=rows, text_embeds=rows)


def heard(tokenizer, signals):
    return [tokenizer.convert_ids_to_tokens(int(i)) for i in signals.ids[content_rows(signals, tokenizer)]]


@pytest.mark.parametrize(
    ("prompt", "bare"),
    [
        (f"\nDescribe the human.\n{SHORT} ASSISTANT:", "Describe the human."),
        (f"\nWho is the assistant?\nA. user\n{LETTER} ASSISTANT:", "Who is the assistant?\nA. user"),
        ("Is this a user?\nassistant\n", "Is this a user?"),
        ("\nWhat is shown? [/INST]", "What is shown?"),
        ("USER: What is the system? ASSISTANT:", "What is the system?"),
        ("user\nWhat is it?\nassistant\n", "What is it?"),
    ],
)
def test_the_bare_question_has_no_speakers_and_no_answer_format(prompt, bare):
    tokenizer = build("llava").processor.tokenizer  # bytes
    assert question(asked(tokenizer, prompt), tokenizer) == bare


def test_words_that_count():
    assert len(STOP) == 47
    assert "being" in STOP
    assert "am" not in STOP
    assert content(f"What is the color of this cat? {SHORT}") == ["color", "of", "this", "cat"]
    assert content("What is it?") == ["What", "is", "it"]
    assert content("Is the user a human?") == ["user", "human"]


def test_rows_are_found_by_where_their_letters_are():
    """The first word of a line has no mark before it; words of the answer's format come back nowhere."""
    tokenizer = sentencepiece()
    signals = asked(tokenizer, f"\nDescribe the human user of this system.\n{SHORT} ASSISTANT:", "<s> this")
    assert heard(tokenizer, signals) == ["Describe", "▁human", "▁user", "▁of", "▁this", "▁system"]
    assert content_rows(signals, None).all()
    with pytest.raises(ValueError, match="tokenizer must be given where the prompt comes as input_ids"):
        content_rows(replace(signals, ids=None), tokenizer)


def test_pieces_of_a_word_are_found_with_it():
    tokenizer = build("llava").processor.tokenizer  # bytes
    signals = asked(tokenizer, f"\nWhat is a dog?\n{SHORT} ASSISTANT:")
    selection = signals.ids[content_rows(signals, tokenizer)]
    assert tokenizer.decode(selection) == "dog"


def test_ids_are_those_of_the_words_by_themselves():
    tokenizer = sentencepiece()
    signals = asked(tokenizer, f"\nDescribe the dog.\n{SHORT} ASSISTANT:")
    assert tokenizer.convert_ids_to_tokens(word_ids(signals, tokenizer).tolist()) == ["Describe", "▁dog"]


@pytest.mark.parametrize("make", [plain, tiled, frames])
def test_words_change_what_mmtok_and_resprune_keep(make):
    tokenizer = sentencepiece()
    text = asked(tokenizer, "\nDescribe the dog.\nAnswer ASSISTANT:")
    signals = replace(make(), ids=text.ids, later=text.later, text=text.text, text_embeds=text.text_embeds)
    for kind in (MMTok, ResPrune):
        every, some = choose(kind(keep=8), signals, 8), choose(kind(keep=8, tokenizer=tokenizer), signals, 8)
        assert every.order.tolist() != some.order.tolist()


def test_mmtok_looks_words_up_in_the_embedding_table():
    tokenizer = sentencepiece()
    signals = asked(tokenizer, "\nDescribe the dog. ASSISTANT:")
    table = torch.nn.Embedding(len(tokenizer), signals.visual.shape[1])
    words = table.weight.detach()[word_ids(signals, tokenizer)]
    selection = choose(MMTok(keep=6, tokenizer=tokenizer, embeddings=table), signals, 6)
    assert (
        selection.order.tolist()
        == choose(MMTok(keep=6), replace(signals, text=words, text_embeds=words), 6).order.tolist()
    )
    with pytest.raises(ValueError, match="embeddings must be given with a tokenizer"):
        MMTok(keep=6, embeddings=table)


def test_mmtok_leaves_out_patches_in_the_bars_of_a_padded_picture():
    """8 rows; bars of a fifth of the side cover one row whole, and most of another."""
    signals = plain(8, 8, d=12)
    rows = signals.cells[:, 1]
    selection = choose(MMTok(keep=20, padding=(0.2, 0.0)), signals, 20)
    assert set(rows[selection.order].tolist()) <= set(range(1, 7))
    assert set(rows[choose(MMTok(keep=20), signals, 20).order].tolist()) >= {0, 7}
    inside = (rows >= 1) & (rows < 7)
    alone = choose(MMTok(keep=20), signals.of(inside.nonzero()[:, 0]), 20)
    assert inside.nonzero()[:, 0][alone.order].tolist() == selection.order.tolist()
    with pytest.raises(ValueError, match="padding must be two shares"):
        MMTok(keep=20, padding=(0.5, 0.0))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A CLIP model as wide as the zoo's tower, saved with its tokenizer."""
    folder, entry = tmp_path_factory.mktemp("clip"), build("llava")
    width = entry.model.config.vision_config.hidden_size
    small = {"hidden_size": width, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = entry.processor.tokenizer
    ends = {
        "eos_token_id": tokens.eos_token_id,
        "bos_token_id": tokens.bos_token_id,
        "pad_token_id": tokens.pad_token_id,
    }
    text = small | ends | {"vocab_size": len(tokens), "max_position_embeddings": 77}
    torch.manual_seed(0)
    model = CLIPModel(
        CLIPConfig(text_config=text, vision_config=small | {"image_size": 56, "patch_size": 14}, projection_dim=6)
    )
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return str(folder)


def test_method_strings_bring_a_text_tower_and_words(clip):
    """What the string makes is what the objects make, on a live model."""
    from divevlm import prune

    entry = build("llava")
    model, processor = entry.model, entry.processor
    tower, tokens = clip_of(clip, "cpu", torch.float32)
    wanted = [
        (
            f"cdpruner:text={clip}",
            CDPruner(keep=5, text_model=tower, text_tokenizer=tokens, tokenizer=processor.tokenizer),
        ),
        ("mmtok:text=words", MMTok(keep=5, tokenizer=processor.tokenizer, embeddings=model.get_input_embeddings())),
        ("resprune:text=words", ResPrune(keep=5, tokenizer=processor.tokenizer)),
    ]
    batch = inputs(entry, [{"text": "What is on the left? " + SHORT, "images": [picture(0, 84, 70)]}])
    for string, method in wanted:
        orders = []
        for ready in (
            Setting(string, 5).check().ready(model, processor),
            method,
            Setting(string.split(":")[0], 5).ready(model),
        ):
            with prune(model, ready) as session, torch.no_grad():
                model(**batch)
            orders.append(session.report.samples[0].order)
        assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("dive:text=clip", "text must be left out for dive, which reads no words, got 'clip'"),
        ("mmtok:text=clip", "text of mmtok must be 'words': the question's content words, got 'clip'"),
        ("cdpruner:theta=2:text=clip", "theta must be"),
    ],
)
def test_wrong_readers_are_told_before_anything_runs(string, message):
    with pytest.raises(ValueError, match=message):
        Setting(string, 5).check()


def test_a_text_tower_that_does_not_load_is_told(tmp_path):
    entry = build("llava")
    with pytest.raises(ValueError, match=r"text must be 'clip' \(openai/.*\) or a CLIP model that loads, got"):
        Setting(f"cdpruner:text={tmp_path}", 5).ready(entry.model, entry.processor)
    with pytest.raises(ValueError, match="text of mmtok must be used with a processor"):
        Setting("mmtok:text=words", 5).ready(entry.model)
