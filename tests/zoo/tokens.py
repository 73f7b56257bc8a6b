"""A byte-level tokenizer: 256 bytes, a few control tokens, and the special tokens of the family."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

USER, ASSISTANT = "<|user|>", "<|assistant|>"

TEMPLATE = (
    "{{% for message in messages %}}{{{{ '<|' + message['role'] + '|>' }}}}"
    "{{% for part in message['content'] %}}"
    "{{% if part['type'] == 'image' %}}{image}"
    "{{% elif part['type'] == 'video' %}}{video}"
    "{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}</s>{{% endfor %}}"
    "{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
)


def tokenizer(special: Iterable[str] = (), **named: str) -> PreTrainedTokenizerFast:
    """`special` are plain special tokens; `named` ones (image_token="<image>") become attributes as well."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<pad>", "<s>", "</s>", USER, ASSISTANT, *named.values(), *special])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=[USER, ASSISTANT, *special],
        **named,
    )


def chat_template(image: str, video: str = "") -> str:
    """One turn reads `<|user|>` images, videos, text `</s>`; a generation prompt ends with `<|assistant|>`."""
    return TEMPLATE.format(image=image, video=video)


def text_sizes(tokens: PreTrainedTokenizerFast, layers: int, kv_heads: int = 2) -> dict:
    """The settings that every language model of the zoo shares."""
    return {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 4096,
        "vocab_size": len(tokens),
        "pad_token_id": tokens.pad_token_id,
        "bos_token_id": tokens.bos_token_id,
        "eos_token_id": tokens.eos_token_id,
        "tie_word_embeddings": False,
    }
