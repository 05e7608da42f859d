# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.10,<6", "tokenizers", "datasets", "accelerate"]
# ///
"""Make the encoder, the corpus sample and the task that `quickstart.py` runs on.

The script makes three parts of examples/quickstart_data/, so that you can reproduce them or make your own. The first is
a small general English BERT:

    python tools/make_quickstart_data.py --part encoder --source some-bert-with-lm-head --text general.txt.gz \
        --output_dir examples/quickstart_data/encoder

The second is a sample of a domain corpus. It contains only documents that name a year from 2016 on beside a venue or a
shared task of the ACL Anthology, which publishes these years under CC BY 4.0. The corpus itself does not have the year.

    python tools/make_quickstart_data.py --part corpus --text cs.txt.gz --output_dir examples/quickstart_data

The third is a task: one table, split as quickstart splits a table of yours. More than a third of the official test set
of ACL-ARC is in its training set too, which made a vote of the nearest texts look 20 points better than it is.

    python tools/make_quickstart_data.py --part task --text acl_arc.jsonl --output_dir examples/quickstart_data/acl_arc

The encoder is cut out of a larger one and trained further on general text. A BERT of this size with random weights
still predicts little more than word frequencies after 8 million tokens (masked-LM loss 6.1). Cut out of a larger one,
it passes that loss within 0.2 million tokens.
"""

import gzip
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from datasets import Dataset, load_dataset
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_domain.comparison.prepare import split_table
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.run_folder import find_checkpoint

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
    """The part to make, its source and its size."""

    part: Literal["encoder", "corpus", "task"] = field(metadata={"help": "Part to make."})
    text: str = field(metadata={"help": "Text, one document per line, plain or .gz; of a task its table."})
    output_dir: str = field(metadata={"help": "Output folder."})
    source: str | None = field(default=None, metadata={"help": "BERT with a masked-LM head to cut the encoder out of."})
    vocab_size: int = field(default=8192, metadata={"help": "Number of WordPieces of the encoder."})
    hidden_size: int = field(default=256, metadata={"help": "Width; the feed-forward is four times as wide."})
    num_hidden_layers: int = field(default=4, metadata={"help": "Layers."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens per training example."})
    max_steps: int = field(default=1200, metadata={"help": "Training steps of 64 examples (about 10 M tokens)."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Examples per step."})
    bf16: bool = field(default=False, metadata={"help": "Train in bfloat16; twice as fast on a CPU with bfloat16."})


def choose_entries(tokenizer: PreTrainedTokenizerBase, text: Dataset, vocab_size: int) -> list[int]:
    """Return the entries of a vocabulary to keep: special ones, all ASCII characters, then the most frequent."""
    counts: Counter[int] = Counter()
    for batch in text.iter(1000):
        for ids in tokenizer(batch["text"], add_special_tokens=False, verbose=False)["input_ids"]:
            counts.update(ids)
    characters = [i for t, i in tokenizer.get_vocab().items() if len(t.removeprefix("##")) == 1 and t.isascii()]
    ordered = [*sorted(tokenizer.all_special_ids), *sorted(characters), *(i for i, _ in counts.most_common())]
    return list(dict.fromkeys(ordered))[:vocab_size]


@torch.no_grad()
def cut_out_encoder(
    source: BertForMaskedLM, inputs: dict[str, torch.Tensor], entries: list[int], config: BertConfig
) -> BertForMaskedLM:
    """Cut a smaller BERT out of `source`: the chosen vocabulary entries and the strongest units, heads and layers.

    Least squares over `inputs` predicts the removed hidden units from the kept ones. This prediction is folded into the
    weights that read hidden states.
    """
    hidden_states = source.bert(**inputs, output_hidden_states=True).hidden_states
    rows = torch.cat([states[inputs["attention_mask"].bool()] for states in hidden_states])
    units = rows.var(dim=0).topk(config.hidden_size).indices.sort().values
    read = torch.linalg.lstsq(rows[:, units], rows).solution.T  # [source width, width]
    small = BertForMaskedLM(config).eval()

    def cut(target: torch.nn.Module, origin: torch.nn.Module, outputs=units, inputs=None, reads=False) -> None:
        weight = origin.weight if inputs is None else origin.weight[:, inputs]
        weight = weight[outputs] if outputs is not None else weight
        target.weight.copy_(weight @ read if reads else weight)
        if getattr(origin, "bias", None) is not None:
            target.bias.copy_(origin.bias[outputs])

    for name in ("word", "position", "token_type"):
        table = getattr(source.bert.embeddings, f"{name}_embeddings").weight[:, units]
        kept = table[entries] if name == "word" else table
        getattr(small.bert.embeddings, f"{name}_embeddings").weight.copy_(kept)
    cut(small.bert.embeddings.LayerNorm, source.bert.embeddings.LayerNorm)
    layers = torch.linspace(0, source.config.num_hidden_layers - 1, config.num_hidden_layers).round().int().tolist()
    head_size = config.hidden_size // config.num_attention_heads
    for target, number in zip(small.bert.encoder.layer, layers, strict=True):
        origin = source.bert.encoder.layer[number]
        per_head = origin.attention.output.dense.weight.unflatten(1, (-1, head_size)).square().sum(dim=(0, 2))
        heads = per_head.topk(config.num_attention_heads).indices.sort().values
        context = (heads[:, None] * head_size + torch.arange(head_size)).flatten()
        for name in ("query", "key", "value"):
            cut(getattr(target.attention.self, name), getattr(origin.attention.self, name), context, reads=True)
        cut(target.attention.output.dense, origin.attention.output.dense, inputs=context)
        cut(target.attention.output.LayerNorm, origin.attention.output.LayerNorm)
        strength = origin.intermediate.dense.weight.norm(dim=1) * origin.output.dense.weight.norm(dim=0)
        neurons = strength.topk(config.intermediate_size).indices.sort().values
        cut(target.intermediate.dense, origin.intermediate.dense, neurons, reads=True)
        cut(target.output.dense, origin.output.dense, inputs=neurons)
        cut(target.output.LayerNorm, origin.output.LayerNorm)
    head, origin = small.cls.predictions, source.cls.predictions
    cut(head.transform.dense, origin.transform.dense, reads=True)
    cut(head.transform.LayerNorm, origin.transform.LayerNorm)
    head.bias.copy_(origin.bias[entries])
    return small


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
    """Cut the encoder out, train it on general text and save it, in bfloat16, with its tokenizer."""
    if args.source is None:
        raise ValueError("--part encoder needs a BERT with a masked-LM head, but none is given. Add --source.")
    set_seed(0)
    output_dir = Path(args.output_dir)
    text = load_dataset("text", data_files=args.text, split="train")
    source = BertForMaskedLM.from_pretrained(args.source, dtype=torch.float32).eval()
    source_tokenizer = AutoTokenizer.from_pretrained(args.source)
    entries = choose_entries(source_tokenizer, text, args.vocab_size)
    pieces = source_tokenizer.convert_ids_to_tokens(entries)
    tokenizer = BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, model_max_length=512)
    # Dropout would only slow down a run of this length: no example is seen more than once.
    config = BertConfig(
        vocab_size=len(entries),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.hidden_size * source.config.num_attention_heads // source.config.hidden_size,
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=source.config.max_position_embeddings,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    sample = source_tokenizer(
        text[:64]["text"], truncation=True, max_length=args.max_seq_length, padding=True, return_tensors="pt"
    )
    model = cut_out_encoder(source, sample, entries, config)
    checkpoints = str(output_dir) + ".checkpoints"
    trainer = Trainer(
        model=decode_labeled_rows_only(model),
        args=TrainingArguments(
            output_dir=checkpoints,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.per_device_train_batch_size,
            learning_rate=7e-4,
            weight_decay=0.01,
            warmup_steps=0.05,
            adam_beta2=0.98,
            bf16=args.bf16,
            use_cpu=not torch.cuda.is_available(),  # Trainer refuses bf16 on a CPU without use_cpu
            save_steps=200,
            save_total_limit=1,
            logging_steps=50,
        ),
        train_dataset=pack_documents(text, tokenizer, args.max_seq_length),
        data_collator=DataCollatorForLanguageModeling(tokenizer),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(checkpoints))
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
    model.to(torch.bfloat16).save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def was_published_from_2016(document: str) -> bool:
    """Return whether a document names a year from 2016 on as an ACL Anthology paper would, and no earlier year."""
    if BEFORE_2016.search(document):
        return False
    return bool(FROM_2016.search(document) or (SHARED_TASK.search(document) and YEAR_FROM_2016.search(document)))


def make_corpus(args: Arguments) -> None:
    """Write the documents of `text` that the rule above keeps to corpus.txt.gz, in their order."""
    text = load_dataset("text", data_files=args.text, split="train")
    kept = [row["text"] for row in text if was_published_from_2016(row["text"])]
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    # mtime=0: the same documents give the same bytes.
    with gzip.GzipFile(output_dir / "corpus.txt.gz", "wb", mtime=0) as file:
        file.write("".join(f"{document}\n" for document in kept).encode())
    print(f"{len(kept):,} of {len(text):,} documents kept, {sum(map(len, kept)):,} characters")


def main() -> None:
    (args,) = parse_arguments(Arguments, description=__doc__)
    if args.part == "encoder":
        make_encoder(args)
    elif args.part == "corpus":
        make_corpus(args)
    else:
        split_table(args.text, Path(args.output_dir))


if __name__ == "__main__":
    main()
