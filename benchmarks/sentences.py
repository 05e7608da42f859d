r"""Compare masked LM with TSDAE for an encoder of sentence embeddings: what each gains and loses in the same time.

    python benchmarks/sentences.py --model_name_or_path all-MiniLM-L6-v2 --corpus corpus.txt.gz \
        --test_files sick/test.jsonl covid/qrels/test.tsv --output sentences.json

The encoder trains on the corpus by `hf_domain.adapt`, and for as many seconds on its sentences by the loss of
sentence-transformers (Wang et al. 2021: 60 % of the words deleted, batches of 8, rate 3e-5). `hf-domain sentences`
scores each with the encoder as it was.
"""

import argparse
import random
import re
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
from transformers import TrainerCallback

import hf_domain
from hf_domain.data.corpora import read_texts
from hf_domain.environment import describe_environment
from hf_domain.safe_io import read_json, write_json
from hf_domain.training.arguments import FineTunerArguments
from hf_domain.training.sentences import SentenceArguments, name_texts, run_sentences


class TimeLimit(TrainerCallback):
    """Ends a training after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop when the time is over."""
        control.should_training_stop = time.perf_counter() > self.end


def delete_words(batch: dict[str, list[str]], share: float = 0.6) -> dict[str, list[str]]:
    """Return sentences without most of their words, and as they were."""
    words = [text.split() for text in batch["text"]]
    kept = [[word for word in own if random.random() > share] or own[:1] for own in words]
    return {"noisy": [" ".join(own) for own in kept], "text": batch["text"]}


def denoise(encoder: str, texts: list[str], seconds: float, folder: Path) -> int:
    """Train by TSDAE for some seconds; return the number of steps."""
    sentences = [own.strip() for text in texts for own in re.split(r"(?<=[.!?])\s+", text) if len(own.split()) > 4]
    data = Dataset.from_dict({"text": random.Random(0).sample(sentences, len(sentences))})
    data.set_transform(delete_words)
    model = SentenceTransformer(encoder, model_kwargs={"dtype": torch.float32})
    args = SentenceTransformerTrainingArguments(
        str(folder / "log"), per_device_train_batch_size=8, learning_rate=3e-5, save_strategy="no", report_to="none"
    )
    trainer = SentenceTransformerTrainer(
        model, args, data, loss=DenoisingAutoEncoderLoss(model), callbacks=[TimeLimit(seconds)]
    )
    trainer.train()
    model.save_pretrained(str(folder))
    return trainer.state.global_step


def main() -> None:
    """Train and score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model_name_or_path", "corpus", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--test_files", nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=300, help="of masked LM")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--max_seq_length", type=int, default=128)
    args = parser.parse_args()
    random.seed(0)
    texts, folder = [*islice(read_texts(args.corpus), args.documents)], Path(args.output).with_suffix("")
    options: dict[str, Any] = {"batch_size": 16, "max_seq_length": args.max_seq_length}
    options["num_tokens"] = args.steps * 16 * args.max_seq_length
    hf_domain.adapt(args.model_name_or_path, texts, output_dir=folder / "masked_lm", **options)
    trained = read_json(folder / "masked_lm" / "all_results.json")
    steps = denoise(args.model_name_or_path, texts, trained["train_runtime"], folder / "tsdae")
    rows: dict[str, Any] = {
        "masked_lm": {"seconds": trained["train_runtime"], "steps": args.steps},
        "tsdae": {"seconds": trained["train_runtime"], "steps": steps},
    }
    for name, row in rows.items():
        for number, file in enumerate(args.test_files):
            (output := folder / f"{name}-{number}").mkdir(exist_ok=True)
            flags = {"reference_name_or_path": args.model_name_or_path, "test_file": file, "overwrite_output_dir": True}
            training_args = FineTunerArguments(str(output), do_predict=True, report_to="none")
            run_sentences(*name_texts(SentenceArguments(str(folder / name), **flags), training_args))
            row[file] = read_json(output / "all_results.json")
        write_json(Path(args.output), {"options": vars(args), "environment": describe_environment(), "rows": rows})


if __name__ == "__main__":
    main()
