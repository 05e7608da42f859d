"""A similarity and a retrieval whose texts share words, for tests of sentence embeddings."""

import random

from script_runs import write_jsonl

WORDS = ["cat", "dog", "bird", "mat", "hill", "tree", "car", "road", "rain", "snow", "cup", "milk", "red", "blue"]


def make_texts(count, seed=0):
    """Texts of six words."""
    numbers = random.Random(seed)
    return [" ".join(numbers.sample(WORDS, 6)) for _ in range(count)]


def write_pairs(folder, sizes=(24, 10, 12)):
    """Write pairs whose score, from 1 to 5, is the share of words that both texts have."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, size) in enumerate(zip(("train", "validation", "test"), sizes, strict=True)):
        texts = make_texts(2 * size, seed)
        rows = [
            {"sentence1": one, "sentence2": two, "score": 1 + 4 * len({*one.split()} & {*two.split()}) / 6}
            for one, two in zip(texts[:size], texts[size:], strict=True)
        ]
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


def write_search(folder, splits=("train", "dev", "test")):
    """Write queries of three words of a passage, in the layout of BEIR; each third query has two passages."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    texts = make_texts(40, seed=9)
    title = {0: "a title", 1: ""}
    corpus = [{"_id": f"d{n}", "title": title.get(n, ""), "text": text} for n, text in enumerate(texts)]
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", [{"_id": n, "text": " ".join(t.split()[:3])} for n, t in enumerate(texts)])
    for number, split in enumerate(splits):
        lines = ["query-id\tcorpus-id\tscore"]
        for query in range(number * 9, number * 9 + 9):
            lines += [f"{query}\td{query}\t1", f"{query}\td{39 - query}\t{2 if query % 3 == 0 else 0}"]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder
