r"""Measure how much general language adapted encoders forgot: masked-LM losses on general and domain text.

    python examples/report_forgetting.py \
        --models general=bert-base-uncased dapt=adapted gmap=adapted-with-memory \
        --corpora general=wikipedia.txt.gz cs=abstracts.txt.gz --output_dir forgetting

All models must have the same tokenizer, because losses are comparable under one tokenizer only. The output is
forgetting.json and forgetting.png.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.checks import check_metrics, check_weights
from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.environment import describe_environment
from hf_domain.modeling.pretrained_gmap import read_same_ids
from hf_domain.safe_io import lock_folder, read_json, remove_unfinished, write_json
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.forgetting import compare_losses, plot_losses


@dataclass
class ReportArguments:
    """The models and the texts."""

    models: list[str] = field(metadata={"help": "Masked LMs as name=folder or name=name on the Hub."})
    corpora: list[str] = field(metadata={"help": "Held-out text as name=file: .txt .jsonl .json .csv (.gz) .parquet."})
    output_dir: str = field(metadata={"help": "Folder for the report."})
    max_seq_length: int = field(default=128, metadata={"help": "Number of tokens in an example."})
    max_samples: int | None = field(default=None, metadata={"help": "Use only this many examples of each corpus."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens to predict."})
    per_device_eval_batch_size: int = field(default=16, metadata={"help": "Number of examples in a batch."})
    seed: int = field(default=42, metadata={"help": "Seed of the masks."})
    use_cpu: bool = field(default=False, metadata={"help": "Do not use an accelerator."})


def parse_names(pairs: list[str], option: str) -> dict[str, str]:
    """Parse name=value pairs."""
    if broken := [pair for pair in pairs if not all(pair.partition("="))]:
        raise ValueError(f"--{option} must be name=value pairs, but has {', '.join(broken)}")
    names = dict(pair.split("=", 1) for pair in pairs)
    if len(names) < len(pairs):
        raise ValueError(f"--{option} must have different names, but has {', '.join(pairs)}")
    return names


def load_models(names: dict[str, str], device: str) -> Iterator[tuple[str, PreTrainedModel]]:
    """Load one model after another."""
    for name, path in names.items():
        model = AutoModelForMaskedLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=False)
        check_weights(model, path)
        yield name, model.to(device)


def check_report(file: Path, corpora: list[str]) -> None:
    """Raise a FileExistsError if a report is not one of these corpora: the new one would replace it."""
    if not file.is_file():
        return
    try:
        before = read_json(file)["settings"]["corpora"]
    except (KeyError, TypeError):
        before = ["another command"]
    if before != corpora:
        raise FileExistsError(
            f"--output_dir must not have a report of other --corpora, but {file} is of {', '.join(before)}. Name "
            "another --output_dir."
        )


def main() -> None:
    (args,) = parse_arguments(ReportArguments, description=__doc__)
    models, files = parse_names(args.models, "models"), parse_names(args.corpora, "corpora")
    output_dir = Path(args.output_dir)
    check_report(output_dir / "forgetting.json", args.corpora)
    tokenizer, *others = (AutoTokenizer.from_pretrained(path, trust_remote_code=False) for path in models.values())
    for other in others:
        if not read_same_ids(tokenizer, other):
            raise ValueError(
                "the models must have the same tokenizer, so that their losses are comparable, but those of "
                f"{tokenizer.name_or_path} and {other.name_or_path} differ. Report the models separately."
            )
    corpora = {}
    for name, file in files.items():
        corpus = load_corpus(file, validation_split_percentage=0)
        examples = tokenize_corpus(corpus, tokenizer, max_seq_length=args.max_seq_length)["train"]
        if not len(examples):
            raise ValueError(
                f"each text must fill an example of --max_seq_length {args.max_seq_length} tokens, but {file} of "
                f"{name} is shorter. Use more text or shorter examples."
            )
        corpora[name] = examples.take(min(args.max_samples or len(examples), len(examples)))

    device = "cuda" if torch.cuda.is_available() and not args.use_cpu else "cpu"
    losses = compare_losses(
        load_models(models, device),
        corpora,
        tokenizer,
        mlm_probability=args.mlm_probability,
        batch_size=args.per_device_eval_batch_size,
        seed=args.seed,
    )
    for model, by_corpus in losses.items():
        check_metrics({f"the loss of {model} on {corpus}": found["loss"] for corpus, found in by_corpus.items()})
    report = {"settings": vars(args), "losses": losses, **describe_environment()}
    with lock_folder(output_dir):
        remove_unfinished(output_dir)
        write_json(output_dir / "forgetting.json", report)
        plot_losses(losses, output_dir / "forgetting.png")
    for model, by_corpus in losses.items():
        print(model, *(f"{corpus}: {measured['loss']:.3f}" for corpus, measured in by_corpus.items()), sep="\t")


if __name__ == "__main__":
    main()
