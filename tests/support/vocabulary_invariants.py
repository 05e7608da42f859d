"""What must hold of every expanded tokenizer, and the tiny tokenizers it is tried on."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import forked_python
from tiny_tokenizers import make_roberta_tokenizer
from transformers import (
    BertTokenizer,
    DebertaV2Tokenizer,
    PreTrainedTokenizerBase,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from hf_domain.tokenization import VocabularyDelta

# Latin, accented, Chinese, mixed and emoji text; what none of the tiny vocabularies was trained on is in there too.
MIXED_TEXTS = [
    "the patient has a lymphoma and a lymphomatous lesion",
    "Lymphoma, lymphomas; (lymphoma) non-lymphoma lymphoma.",
    "naïve Müller café lymphöma",
    "患者 has 淋巴瘤 lymphoma",
    "淋巴瘤lymphoma混合text",
    "lymphoma 🧬🩺 ok 👩‍⚕️lymphoma",
    "  two  spaces\tand a tab\nand a line  ",
    "[MASK] <mask> [CLS] 5mg of blastocystin",
    "x",
]


def assert_vocabulary_grew(
    old: PreTrainedTokenizerBase, new: PreTrainedTokenizerBase, delta: VocabularyDelta, texts: Iterable[str]
) -> None:
    """Assert the invariants of an expansion that need no other process.

    Args:
        old: The tokenizer that was expanded.
        new: The result.
        delta: The result's delta.
        texts: Texts on which lengths and offsets are compared.
    """
    old_ids, new_ids = old.get_vocab(), new.get_vocab()
    assert {entry: new_ids[entry] for entry in old_ids} == old_ids
    assert {entry: id_ for entry, id_ in new_ids.items() if entry not in old_ids} == {
        entry: delta.old_size + number for number, entry in enumerate(delta.pieces)
    }
    assert new.special_tokens_map == old.special_tokens_map and new.all_special_ids == old.all_special_ids
    assert all(id_ < delta.old_size for pieces in delta.pieces.values() for id_ in pieces)
    for text in texts:
        before, after = (tokenizer(text, return_offsets_mapping=True) for tokenizer in (old, new))
        assert before.keys() == after.keys()
        assert len(after["input_ids"]) <= len(before["input_ids"]), text
        assert_same_cover(before["offset_mapping"], after["offset_mapping"], text)


def assert_same_cover(before: list[tuple[int, int]], after: list[tuple[int, int]], text: str) -> None:
    """Assert that the tokens' offsets cover the characters of the text that they covered before."""
    covered_before, covered_after = (
        {place for start, end in offsets for place in range(start, end)} for offsets in (before, after)
    )
    assert covered_before == covered_after, text
    assert all(0 <= start <= end <= len(text) for start, end in after)


def assert_loads_elsewhere(tokenizers: dict[str, PreTrainedTokenizerBase], directory: Path, texts: list[str]) -> None:
    """Assert that a process that knows nothing of this package makes the same ids of what was saved."""
    for name, tokenizer in tokenizers.items():
        tokenizer.save_pretrained(directory / name)
    script = (
        "import json, sys; from transformers import AutoTokenizer; texts = json.loads(sys.argv[1]);"
        "print(json.dumps([AutoTokenizer.from_pretrained(path)(texts)['input_ids'] for path in sys.argv[2:]]));"
        "assert not any(name.startswith('hf_domain') for name in sys.modules)"
    )
    folders = [directory / name for name in tokenizers]
    run = forked_python.run([sys.executable, "-c", script, json.dumps(texts), *folders], has_libraries=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [tokenizer(texts)["input_ids"] for tokenizer in tokenizers.values()]


GENERAL_TEXTS = [
    "the patient has a lesion and the doctor has a plan to heal it with a new treatment",
    "a cell is a small part of the body and blood is made of cells in the bone",
    "two spaces and a tab and a line of text a mark brackets and non words are here",
    "naive cafe muller ok 5 mg 10 of stock in it lymph oma blast cyst",
] * 3
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;:()-[]<>"
WORDS = sorted(set(" ".join(GENERAL_TEXTS).split()))
PARTS = ["oma", "cyt", "ent", "tro", "pin", "ic", "es", "mu"]


def make_wordpiece() -> BertTokenizer:
    """A lower-cased BERT tokenizer of some hundred pieces."""
    continuations = ["##" + piece for piece in [*CHARACTERS, *PARTS]]
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, *continuations, *WORDS]
    vocab = {entry: id_ for id_, entry in enumerate(dict.fromkeys(entries))}
    return BertTokenizer(vocab=vocab, model_max_length=512)


def make_byte_level_bpe() -> RobertaTokenizer:
    """A RoBERTa tokenizer of some hundred pieces."""
    return make_roberta_tokenizer(GENERAL_TEXTS)


def score_pieces(special: list[str]) -> list[tuple[str, float]]:
    """The pieces of a Unigram model, after some special ones."""
    scores = {piece: 0.0 for piece in special}
    scores |= {"▁": -3.0} | {character: -6.0 - 0.01 * rank for rank, character in enumerate(CHARACTERS)}
    scores |= {part: -7.0 - 0.1 * rank for rank, part in enumerate(PARTS)}
    scores |= {f"▁{word}": -5.0 - 0.01 * rank for rank, word in enumerate(WORDS)}
    return list(scores.items())


def make_xlm_roberta() -> XLMRobertaTokenizer:
    """A Unigram tokenizer whose special tokens are pieces."""
    vocab = [*score_pieces(["<s>", "<pad>", "</s>", "<unk>"]), ("<mask>", 0.0)]
    return XLMRobertaTokenizer(vocab=vocab, model_max_length=512)


def make_deberta() -> DebertaV2Tokenizer:
    """A Unigram tokenizer whose [MASK] follows the pieces without being one, as in DeBERTa-v3."""
    return DebertaV2Tokenizer(vocab=score_pieces(["[PAD]", "[CLS]", "[SEP]", "[UNK]"]), unk_id=3, model_max_length=512)


TOKENIZERS = {
    "wordpiece": make_wordpiece,
    "byte-level bpe": make_byte_level_bpe,
    "xlm-roberta": make_xlm_roberta,
    "deberta": make_deberta,
}

DOMAIN_TEXTS = [
    "Lymphoma and lymphomas are malignant; the lymphomatous lesion of the patient is a lymphoma",
    "a blastocyst is not a blastocoel, and a blastoma is no blastomere: blastogenic blastodisc blastopore",
    "gonadotropin, somatotropin, thyrotropin and corticotropin are tropins; adrenocorticotropin too",
    "immunohistochemistry of the lymphoma, immunohistochemistry of the lesion, naïve lymphocytes",
    "患者 has lymphoma, lymphoma 🧬 and Müller cells in the blood",
] * 4
