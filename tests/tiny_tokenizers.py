"""Tokenizers of every kind, learned in process from a few sentences."""

import json

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


def make_bert_tokenizer(sentences: list[str] = SENTENCES, vocab_size: int = 160) -> BertTokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        (sentence.lower() for sentence in sentences),
        trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=special_tokens, show_progress=False),
    )
    return BertTokenizer(vocab=tokenizer.get_vocab(), model_max_length=MAX_LENGTH)


def _train_byte_level(sentences: list[str], vocab_size: int, special_tokens: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def make_roberta_tokenizer(
    sentences: list[str] = SENTENCES, vocab_size: int = 340, add_prefix_space: bool = False
) -> RobertaTokenizer:
    tokenizer = _train_byte_level(sentences, vocab_size, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    merges = [tuple(merge) for merge in _read_model(tokenizer)["merges"]]
    return RobertaTokenizer(
        vocab=tokenizer.get_vocab(), merges=merges, add_prefix_space=add_prefix_space, model_max_length=MAX_LENGTH
    )


def make_modernbert_tokenizer(sentences: list[str] = SENTENCES, vocab_size: int = 340) -> PreTrainedTokenizerFast:
    special_tokens = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    tokenizer = _train_byte_level(sentences, vocab_size, list(special_tokens.values()))
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


def _train_unigram(sentences: list[str], vocab_size: int, special_tokens: list[str], unk_token: str) -> list:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, unk_token=unk_token, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return [tuple(piece) for piece in _read_model(tokenizer)["vocab"]]


def make_xlm_roberta_tokenizer(sentences: list[str] = SENTENCES, vocab_size: int = 160) -> XLMRobertaTokenizer:
    vocab = _train_unigram(sentences, vocab_size, ["<s>", "<pad>", "</s>", "<unk>"], "<unk>")
    return XLMRobertaTokenizer(vocab=[*vocab, ("<mask>", 0.0)], model_max_length=MAX_LENGTH)


def make_deberta_v2_tokenizer(sentences: list[str] = SENTENCES, vocab_size: int = 160) -> DebertaV2Tokenizer:
    vocab = _train_unigram(sentences, vocab_size, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "[UNK]")
    return DebertaV2Tokenizer(vocab=[*vocab, ("[MASK]", 0.0)], model_max_length=MAX_LENGTH)


def _read_model(tokenizer: Tokenizer) -> dict:
    return json.loads(tokenizer.to_str())["model"]


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
