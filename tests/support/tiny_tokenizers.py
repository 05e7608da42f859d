"""Tokenizers of every kind, made in process from a few sentences, always the same."""

import json
import re

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertTokenizer,
    DebertaV2Tokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

SENTENCES = [
    "The encoder reads domain text, and the decoder is left out.",
    "Masked language modeling predicts the hidden words from both sides.",
    "Continued pretraining helps when domain corpora are small.",
    "Cardiomyopathy and leukaemia are unlikely words in general text.",
    "合同应当采用书面形式。",
]
MAX_LENGTH = 512


def make_bert_tokenizer(sentences: list[str] = SENTENCES) -> BertTokenizer:
    """WordPiece. The trainer of tokenizers breaks ties by chance, so words are simply cut after every fifth letter."""
    words = re.findall(r"\w+|[^\w\s]", " ".join(sentences).lower())
    characters = sorted(set("".join(words)))
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters])
    pieces |= dict.fromkeys(f"##{character}" for character in characters)
    for word in words:
        first, *others = _cut(word)
        pieces |= dict.fromkeys([first, *(f"##{piece}" for piece in others)])
    vocab = {piece: number for number, piece in enumerate(pieces)}
    return BertTokenizer(vocab=vocab, model_max_length=MAX_LENGTH)


def make_roberta_tokenizer(sentences: list[str] = SENTENCES, add_prefix_space: bool = False) -> RobertaTokenizer:
    """Byte-level BPE whose class sets the pre-tokenizer."""
    tokenizer = _train_byte_level(sentences, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    merges = [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    return RobertaTokenizer(
        vocab=tokenizer.get_vocab(), merges=merges, add_prefix_space=add_prefix_space, model_max_length=MAX_LENGTH
    )


def make_modernbert_tokenizer(sentences: list[str] = SENTENCES) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose file sets everything."""
    names = ("unk_token", "cls_token", "sep_token", "pad_token", "mask_token")
    special_tokens = {name: f"[{name[:-6].upper()}]" for name in names}
    tokenizer = _train_byte_level(sentences, list(special_tokens.values()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **special_tokens,
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=MAX_LENGTH,
    )


def make_xlm_roberta_tokenizer(sentences: list[str] = SENTENCES) -> XLMRobertaTokenizer:
    """Unigram with Metaspace."""
    vocab = _make_unigram(sentences, ["<s>", "<pad>", "</s>", "<unk>"], "<mask>")
    return XLMRobertaTokenizer(vocab=vocab, model_max_length=MAX_LENGTH)


def make_deberta_v2_tokenizer(sentences: list[str] = SENTENCES) -> DebertaV2Tokenizer:
    """Unigram with Metaspace, other special tokens."""
    vocab = _make_unigram(sentences, ["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[MASK]")
    return DebertaV2Tokenizer(vocab=vocab, unk_id=3, model_max_length=MAX_LENGTH)


def _cut(word: str) -> list[str]:
    return [word[start : start + 5] for start in range(0, len(word), 5)]


def _train_byte_level(sentences: list[str], special_tokens: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=special_tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def _make_unigram(sentences: list[str], special_tokens: list[str], mask_token: str) -> list[tuple[str, float]]:
    words = [f"▁{word}" for word in " ".join(sentences).split()]
    pieces = [piece for word in words for piece in _cut(word)] + sorted(set("".join(words)))
    # Fewer pieces are better, whatever they are.
    scores = {token: 0.0 for token in special_tokens} | {piece: -5.0 for piece in pieces} | {mask_token: 0.0}
    return list(scores.items())


MAKERS = {
    "bert": make_bert_tokenizer,
    "roberta": make_roberta_tokenizer,
    "modernbert": make_modernbert_tokenizer,
    "xlm-roberta": make_xlm_roberta_tokenizer,
    "deberta-v2": make_deberta_v2_tokenizer,
}


def make_tokenizer(kind: str) -> PreTrainedTokenizerBase:
    """Make a tokenizer as a model of that kind has it."""
    return MAKERS[kind]()
