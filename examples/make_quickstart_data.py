# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.10,<6", "tokenizers", "datasets", "accelerate"]
# ///
"""Make the encoder and the corpus sample that `quickstart.py` runs on.

The two parts of examples/quickstart_data/ that are not copied from somewhere are made here, so that anybody can make
them again or make their own: a small general English BERT, trained from nothing on any text with one document a line,

    python examples/make_quickstart_data.py --part encoder --text general.txt.gz \
        --output_dir examples/quickstart_data/encoder

and a sample of a domain corpus, kept to documents that name a year from 2016 on beside a venue or a shared task of the
ACL Anthology (the years it publishes under CC BY 4.0; the corpus itself does not carry the year),

    python examples/make_quickstart_data.py --part corpus --text cs.txt.gz --output_dir examples/quickstart_data
"""

import gzip
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from datasets import Dataset, load_dataset
from tokenizers import BertWordPieceTokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

VENUES = (
    "SemEval|WMT|IWSLT|CoNLL|BioNLP|SMM4H|WASSA|VarDial|DravidianLangTech|AmericasNLP|MEDIQA|LT-EDI|NLP4IF|SIGMORPHON|"
    "BEA|WNUT|FinCausal|FinSim|FinNLP|ArabicNLP|WANLP|CLPsych|TextGraphs|SIGTYP|MultiLexNorm|BabyLM|WAT|NADI|TSAR|UNLP|"
    "FEVER|ACL|EMNLP|NAACL|EACL|AACL|COLING|LREC"
)
FROM_2016 = re.compile(rf"\b({VENUES})[- \u2019']{{0,3}}(20)?(1[6-9]|2[0-5])\b")
BEFORE_2016 = re.compile(rf"\b({VENUES})[- \u2019']{{0,3}}(20)?(0\d|1[0-5])\b")
SHARED_TASK = re.compile(r"\bshared task\b", re.IGNORECASE)
YEAR_FROM_2016 = re.compile(r"\b20(1[6-9]|2[0-5])\b")


@dataclass
class Arguments:
    """What to make, from what, and how large."""

    part: Literal["encoder", "corpus"] = field(metadata={"help": "What to make."})
    text: str = field(metadata={"help": "Text, one document a line, plain or .gz."})
    output_dir: str = field(metadata={"help": "Where it is written."})
    vocab_size: int = field(default=8192, metadata={"help": "WordPieces of the encoder."})
    hidden_size: int = field(default=256, metadata={"help": "Width; the feed-forward is four times as wide."})
    num_hidden_layers: int = field(default=4, metadata={"help": "Layers."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens per training example."})
    max_steps: int = field(default=2400, metadata={"help": "Training steps of 64 examples (about 19 M tokens)."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Examples per step."})
    bf16: bool = field(default=False, metadata={"help": "Train in bfloat16; twice as fast on a CPU that has it."})


class MaskedPositionsTrainer(Trainer):
    """The stock trainer, with the vocabulary projected at masked positions only: the same loss at half the time."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        masked = labels != -100
        hidden_states = model.bert(**inputs).last_hidden_state[masked]
        loss = torch.nn.functional.cross_entropy(model.cls(hidden_states).float(), labels[masked])
        return (loss, {}) if return_outputs else loss


def train_tokenizer(text: Dataset, vocab_size: int) -> BertTokenizer:
    """Learn a lower-cased WordPiece vocabulary."""
    learner = BertWordPieceTokenizer(lowercase=True)
    learner.train_from_iterator((row["text"] for row in text), vocab_size=vocab_size, length=len(text))
    return BertTokenizer(vocab=learner.get_vocab(), do_lower_case=True, model_max_length=512)


def pack_documents(text: Dataset, tokenizer: BertTokenizer, length: int) -> Dataset:
    """Cut every document into examples of `length` tokens; a tail shorter than a quarter of that is dropped."""

    def pack(batch):
        examples = []
        for ids in tokenizer(batch["text"], add_special_tokens=False)["input_ids"]:
            for start in range(0, len(ids), length - 2):
                piece = ids[start : start + length - 2]
                if len(piece) >= length // 4:
                    examples.append([tokenizer.cls_token_id, *piece, tokenizer.sep_token_id])
        return {"input_ids": examples}

    return text.map(pack, batched=True, remove_columns=text.column_names, desc="Packing")


def make_encoder(args: Arguments) -> None:
    """Train a BERT from nothing and save it, in bfloat16, with its tokenizer."""
    set_seed(0)
    output_dir = Path(args.output_dir)
    text = load_dataset("text", data_files=args.text, split="train")
    tokenizer = train_tokenizer(text, args.vocab_size)
    dataset = pack_documents(text, tokenizer, args.max_seq_length)
    # Dropout would only slow down a run of this length: no example is seen more than a few times.
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.hidden_size // 64,
        intermediate_size=4 * args.hidden_size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)
    checkpoints = str(output_dir) + ".checkpoints"
    trainer = MaskedPositionsTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=checkpoints,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.per_device_train_batch_size,
            learning_rate=1e-3,
            weight_decay=0.01,
            warmup_steps=0.05,
            adam_beta2=0.98,
            lr_scheduler_type="linear",
            bf16=args.bf16,
            use_cpu=not torch.cuda.is_available(),  # bf16 on a CPU is refused unless the CPU was asked for
            save_steps=200,
            save_total_limit=1,
            logging_steps=50,
            remove_unused_columns=False,
        ),
        train_dataset=dataset,
        data_collator=DataCollatorForLanguageModeling(tokenizer),
    )
    resume = get_last_checkpoint(checkpoints) if Path(checkpoints).is_dir() else None
    trainer.train(resume_from_checkpoint=resume)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
    model.to(torch.bfloat16).save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def was_published_from_2016(document: str) -> bool:
    """Whether a document names a year from 2016 on as an ACL Anthology paper would, and none before."""
    if BEFORE_2016.search(document):
        return False
    return bool(FROM_2016.search(document) or (SHARED_TASK.search(document) and YEAR_FROM_2016.search(document)))


def make_corpus(args: Arguments) -> None:
    """Write the documents of `text` that the rule above keeps, in their order, to corpus.txt.gz."""
    text = load_dataset("text", data_files=args.text, split="train")
    kept = [row["text"] for row in text if was_published_from_2016(row["text"])]
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    # mtime=0: the same documents give the same bytes.
    with gzip.GzipFile(output_dir / "corpus.txt.gz", "wb", mtime=0) as file:
        file.write("".join(f"{document}\n" for document in kept).encode())
    print(f"{len(kept):,} of {len(text):,} documents kept, {sum(map(len, kept)):,} characters")


def main() -> None:
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    if args.part == "encoder":
        make_encoder(args)
    else:
        make_corpus(args)


if __name__ == "__main__":
    main()
