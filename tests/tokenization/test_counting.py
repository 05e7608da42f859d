from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest
from vocabulary_invariants import DOMAIN_TEXTS, MIXED_TEXTS, TOKENIZERS, make_byte_level_bpe, make_wordpiece

from hf_domain.tokenization import WordCounts, batch_texts, count_shard, count_words, merge_counts

TEXTS = [*DOMAIN_TEXTS, *MIXED_TEXTS, "", "  \n"]


def count_directly(texts, backend):
    """Normalize and pre-tokenize each document, one by one."""
    words = Counter()
    for text in texts:
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    return words


@pytest.mark.parametrize("name", TOKENIZERS)
def test_counts_equal_the_direct_ones(name):
    backend = TOKENIZERS[name]().backend_tokenizer
    counts = count_shard(TEXTS, backend)
    assert counts.words == count_directly(TEXTS[:-2], backend)
    assert counts.documents == len(TEXTS) - 2  # the blank ones
    assert min(counts.words.values()) > 0


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_that_were_added_are_no_words(name):
    """As with `@gene$` for a masked entity: the tokenizer cuts them out before its model sees the text."""
    tokenizer = TOKENIZERS[name]()
    plain = count_shard(["binds strongly", "one two"], tokenizer.backend_tokenizer)
    tokenizer.add_tokens(["@gene$", "one"])
    counts = count_shard(["binds @gene$ strongly", "one two"], tokenizer.backend_tokenizer)
    assert not any("gene" in word or "@" in word or "one" in word for word in counts.words)
    assert any("binds" in word for word in counts.words) and counts.splitter != plain.splitter


def test_a_text_that_chunks_would_miscount_is_counted_directly():
    # Two blanks before a word are a word of their own for a byte-level pre-tokenizer; chunks do not see them.
    backend = make_byte_level_bpe().backend_tokenizer
    counts = count_shard(["one  two   three"], backend)
    assert counts.words == Counter({"one": 1, "Ġ": 1, "Ġtwo": 1, "ĠĠ": 1, "Ġthree": 1})


def test_a_strange_text_inside_a_long_shard_is_noticed():
    backend = make_byte_level_bpe().backend_tokenizer
    texts = ["one word"] * 400
    texts[200] = "two  words"  # a hundred texts are checked, every fourth
    assert count_shard(texts, backend).words == count_directly(texts, backend)


def test_shards_add_up_to_the_whole():
    backend = make_wordpiece().backend_tokenizer
    shards = list(batch_texts(TEXTS, characters=300))
    assert [*batch_texts(["ab", "c", "d"], characters=2)] == [["ab"], ["c", "d"]]
    assert len(shards) > 3 and [text for shard in shards for text in shard] == TEXTS
    assert merge_counts(count_shard(shard, backend) for shard in shards) == count_shard(TEXTS, backend)


def test_a_process_pool_counts_the_same():
    backend = make_wordpiece().backend_tokenizer
    with ProcessPoolExecutor(2) as executor:
        counts = count_words(batch_texts(TEXTS, characters=200), backend, executor, progress=False)
    assert counts == count_shard(TEXTS, backend)


def test_shards_are_read_as_they_are_counted():
    read = 0

    def shards():
        nonlocal read
        for _ in range(50):
            read += 1
            yield ["one word"]

    class Immediate:
        def submit(self, function, *args):
            submitted.append(read)
            return type("Done", (), {"result": lambda self: function(*args)})()

    submitted = []
    backend = make_wordpiece().backend_tokenizer
    counts = count_words(shards(), backend, Immediate(), progress=False)
    assert counts.documents == 50 and submitted == list(range(1, 51))


def test_four_shards_are_counted_at_once():
    submitted, waited = [], []

    class Later:
        def __init__(self, *arguments):
            self.arguments = arguments

        def result(self):
            waited.append(len(submitted))
            return count_shard(*self.arguments)

    class Pool:
        def submit(self, function, shard, backend):
            submitted.append(shard)
            return Later(shard, backend)

    backend = make_wordpiece().backend_tokenizer
    counts = count_words([["one word"]] * 6, backend, Pool(), progress=False)
    assert counts.documents == 6 and waited == [4, 5, 6, 6, 6, 6]


def test_saved_counts_load_equal(tmp_path):
    counts = count_shard(TEXTS, make_wordpiece().backend_tokenizer)
    counts.save(tmp_path / "counts.parquet")
    assert list(WordCounts.load(tmp_path / "counts.parquet").words.items()) == sorted(
        counts.words.items(), key=lambda item: (-item[1], item[0])
    )
    assert WordCounts.load(tmp_path / "counts.parquet") == counts
    assert [path.name for path in tmp_path.iterdir()] == ["counts.parquet"]


def test_a_file_of_something_else_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"word": ["a"], "count": [1]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="must be a file of word counts"):
        WordCounts.load(tmp_path / "other.parquet")


def test_counts_of_different_tokenizers_do_not_add_up():
    parts = [count_shard(TEXTS, make().backend_tokenizer) for make in (make_wordpiece, make_byte_level_bpe)]
    with pytest.raises(ValueError, match="fingerprints"):
        merge_counts(parts)


def test_nothing_to_count_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        count_words([], make_wordpiece().backend_tokenizer, progress=False)
