import gzip
import json
from unittest.mock import patch

import pytest
from dask_workers import start_workers
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM
from vocabulary_invariants import DOMAIN_TEXTS, make_wordpiece

from hf_domain.examples.run_expand_vocab import main
from hf_domain.tokenization import VocabularyDelta, WordCounts, count_shard


@pytest.fixture
def checkpoint(tmp_path):
    tokenizer = make_wordpiece()
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(**shape, vocab_size=len(tokenizer))).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


def run(checkpoint, output, *files, **options):
    arguments = {"model_name_or_path": checkpoint, "output_dir": output, "min_frequency": 2, "step": 15}
    flags = [str(part) for name, value in (arguments | options).items() for part in (f"--{name}", value)]
    with patch("sys.argv", ["run_expand_vocab.py", *flags, "--num_workers", "1", "--train_file", *map(str, files)]):
        main()


def test_the_script_writes_a_checkpoint_and_a_report(checkpoint, tmp_path):
    half = len(DOMAIN_TEXTS) // 2
    (tmp_path / "corpus.txt").write_text("\n".join(DOMAIN_TEXTS[:half]), encoding="utf-8")
    pairs = zip(DOMAIN_TEXTS[half::2], [*DOMAIN_TEXTS[half + 1 :: 2], ""], strict=False)
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": one, "text_pair": two}) + "\n" for one, two in pairs)
    (tmp_path / "task.jsonl").write_text(json.dumps({"tokens": ["a", "lymphoma"], "tags": ["O", "O"]}))
    counts = tmp_path / "counts.parquet"
    files = (tmp_path / "corpus.txt", tmp_path / "corpus.jsonl.gz")
    output, again = tmp_path / "new", tmp_path / "again"
    (tmp_path / "words.txt").write_text("lymphoma\n", encoding="utf-8")
    options = {"validation_file": tmp_path / "task.jsonl", "words": tmp_path / "words.txt"}
    run(checkpoint, output, *files, counts_file=counts, **options)

    tokenizer, model = AutoTokenizer.from_pretrained(output), AutoModelForMaskedLM.from_pretrained(output)
    delta = VocabularyDelta.load(output)
    assert tokenizer.tokenize("lymphoma") == ["lymphoma"] and delta.new_size == len(tokenizer)
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    row = model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids("lymphoma")]
    assert row.tolist() == pytest.approx(
        model.get_input_embeddings().weight[delta.pieces["lymphoma"]].mean(dim=0).tolist(), abs=1e-6
    )
    report = json.loads((output / "vocabulary_report.json").read_text(encoding="utf-8"))
    (lengths,) = report["lengths"].values()
    assert [(row["entries"], row["frequency"] > 1) for row in report["own_words"]] == [(["lymphoma"], True)]
    assert report["documents"] == len(DOMAIN_TEXTS) and (lengths["tokens_before"], lengths["tokens_after"]) == (3, 2)
    assert (output / "curve.png").exists() and (output / "lengths.png").exists()

    with pytest.raises(FileNotFoundError, match=r"must match .*missing\.txt"):
        run(checkpoint, again, *files, validation_file=tmp_path / "missing.txt", counts_file=tmp_path / "new.parquet")
    assert not (tmp_path / "new.parquet").exists()
    (tmp_path / "other.txt").write_text("the contract obligation " * 9)
    with pytest.raises(ValueError, match="has those of other files"):
        run(checkpoint, again, tmp_path / "other.txt", counts_file=counts, embedding_init="none")
    # The second run takes the counts and needs no corpus.
    (tmp_path / "corpus.txt").unlink()
    run(checkpoint, again, *files, counts_file=counts, embedding_init="none")
    assert AutoTokenizer.from_pretrained(again).get_vocab() == tokenizer.get_vocab()
    assert not (again / "model.safetensors").exists()


@pytest.mark.distributed
def test_a_dask_cluster_counts_the_same(checkpoint, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(DOMAIN_TEXTS), encoding="utf-8")
    counts = tmp_path / "counts.parquet"
    with start_workers(tmp_path, 2) as executor:
        address = executor._client.scheduler.address
        options = {"dask_scheduler": address, "counts_file": counts, "embedding_init": "none"}
        run(checkpoint, tmp_path / "new", tmp_path / "corpus.txt", **options)
    assert WordCounts.load(counts) == count_shard(DOMAIN_TEXTS, make_wordpiece().backend_tokenizer)
