"""Positive control of AdaLM's vocabulary and of exBERT: the label hangs on new words, which only the corpus explains.

The old tokenizer spells each new word by three pieces of a small set, and no piece or pair of them tells the class. The
corpus shows every new word among common words of its class. A text of the task has four new words of one class beside
words that mean nothing, and the new words of its test part are not in its training part.
"""

import importlib
import itertools
import random

import pytest
from script_runs import DEMO_ENCODER, run_script

from hf_domain.comparison.rows import RECIPES

pytestmark = pytest.mark.controls

LABELS = ("alpha", "beta", "gamma", "delta")
PIECES, NUM_WORDS = 6, 40  # of each place in a word; of each class
NUM_DOCUMENTS, NUM_TRAIN, NUM_TEST = 3000, 400, 200
STEPS = 150
TRAINING = {"max_steps": STEPS, "per_device_train_batch_size": 16, "max_seq_length": 64, "warmup_steps": 0.1}


@pytest.fixture(scope="module")
def new_words(tokenizer):
    """The new words of each class, for training and for test."""
    rng = random.Random(0)
    entries = sorted(tokenizer.get_vocab())
    first = [piece for piece in entries if piece.isascii() and piece.isalpha() and len(piece) == 2]
    later = [piece[2:] for piece in entries if piece.startswith("##") and piece[2:].isalpha() and len(piece) == 4]
    while True:
        parts = [rng.sample(pieces, PIECES) for pieces in (first, later, later)]
        words = ["".join(pieces) for pieces in itertools.product(*parts)]
        spelled = [[a, f"##{b}", f"##{c}"] for a, b, c in itertools.product(*parts)]
        whole = [word for word, pieces in zip(words, spelled, strict=True) if tokenizer.tokenize(word) == pieces]
        if len(whole) >= NUM_WORDS * len(LABELS):
            break
    chosen = iter(rng.sample(whole, NUM_WORDS * len(LABELS)))
    found = {label: list(itertools.islice(chosen, NUM_WORDS)) for label in LABELS}
    return {label: (each[: NUM_WORDS * 3 // 4], each[NUM_WORDS * 3 // 4 :]) for label, each in found.items()}


@pytest.fixture(scope="module")
def corpus(words, new_words, tmp_path_factory):
    """A document is of one class: its new words, those of training and of test alike, among its common words."""
    rng = random.Random(1)
    common = rng.sample(words, 60 + 200)
    topics = {label: common[15 * number : 15 * number + 15] for number, label in enumerate(LABELS)}

    def write():
        label = rng.choice(LABELS)
        new = rng.choices([*itertools.chain(*new_words[label])], k=8)
        text = [[word, *rng.choices(topics[label], k=3), rng.choice(common[60:])] for word in new]
        for sentence in text:
            rng.shuffle(sentence)
        return " ".join(itertools.chain(*text))

    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(write() for _ in range(NUM_DOCUMENTS)))
    return path


@pytest.fixture(scope="module")
def splits(words, new_words):
    rng = random.Random(2)
    others = rng.sample(words, 300)

    def make(part):
        label = rng.choice(LABELS)
        text = [*rng.sample(new_words[label][part], 4), *rng.sample(others, 2)]
        rng.shuffle(text)
        return {"text": " ".join(text), "label": label}

    return [make(0) for _ in range(NUM_TRAIN)], [make(1) for _ in range(NUM_TEST)]


@pytest.fixture(scope="module")
def score(corpus, splits, tmp_path_factory):
    """Adapt the encoder by a row of comparisons, at its rate or another, fine-tune it, and return the accuracy."""
    home, known = tmp_path_factory.mktemp("home"), {}

    def adapt(folder, **flags):
        main = importlib.import_module("hf_domain.examples.run_mlm").main
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("datasets.config.HF_DATASETS_CACHE", home / "cache")
            return run_script(main, patch, home / folder, train_file=corpus, **flags)

    def score(row, classify, rate=None):
        name = f"{row}-{rate}" if rate else row
        if name not in known:
            recipe, encoder = RECIPES[row.removesuffix("_paper")], str(DEMO_ENCODER)
            if recipe.expands_vocabulary and not (home / "vocabulary").exists():
                expand(home / "vocabulary", corpus)
            added = {"expanded_vocabulary": home / "vocabulary"} if recipe.expands_vocabulary else {}
            if recipe.method is not None:
                added |= {"start": "paper"} if row.endswith("_paper") else {}
                flags = {"method": recipe.method, **recipe.defaults, **TRAINING, **added}
                flags |= {"learning_rate": rate} if rate else {}
                adapt(name, model_name_or_path=encoder, do_train=True, **flags)
                encoder = str(home / name)
            known[name] = classify(*splits, model_name_or_path=encoder)
            print(f"{name}: {known[name]:.3f}", flush=True)
        return known[name]

    return score


def expand(folder, corpus):
    main = importlib.import_module("hf_domain.examples.run_expand_vocab").main
    arguments = ["--model_name_or_path", str(DEMO_ENCODER), "--train_file", str(corpus), "--embedding_init", "none"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["expand_vocab", *arguments, "--output_dir", str(folder)])
        main()


def test_new_words_learn_what_they_mean(score, classify):
    assert score("adalm", classify) >= score("dapt", classify) + 0.1


def test_an_extension_learns_what_new_words_mean(score, classify):
    assert score("exbert", classify) >= score("dapt", classify) + 0.1
    rate = RECIPES["exbert"].defaults["learning_rate"]
    assert score("exbert", classify) >= score("dapt", classify, rate) + 0.1  # it is not the rate that wins
    assert score("exbert", classify) >= score("exbert_paper", classify)


def test_pieces_alone_say_nothing(score, classify):
    assert score("no_adaptation", classify) <= 0.4
