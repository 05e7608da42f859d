r"""Measure masked LM at rates around the default: is the loss of the rule close to that of the best?

    python benchmarks/rates.py --model_name_or_path encoder --corpus corpus.txt.gz --heldout heldout.txt.gz \
        --output rates.json

Each training has the same text, batches and seed. The losses are those of held-out text, in which the same tokens are
masked. A rate is given relative to the default.
"""

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import hf_domain
from hf_domain.data.corpora import read_texts
from hf_domain.environment import describe_environment
from hf_domain.safe_io import read_json, write_json


def main() -> None:
    """Train at each rate, and write the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model_name_or_path", "corpus", "heldout", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--method", default="dapt")
    parser.add_argument("--factors", type=float, nargs="+", default=[2, 0.5, 4, 0.25], help="beside 1")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--heldout_documents", type=int, default=150)
    args = parser.parse_args()
    texts = [*islice(read_texts(args.corpus), args.documents)]
    held_out = [*islice(read_texts(args.heldout), args.heldout_documents)]
    default, rows = None, []
    for factor in (1, *args.factors):
        with tempfile.TemporaryDirectory() as folder:
            hf_domain.adapt(
                args.model_name_or_path,
                texts,
                args.method,
                output_dir=folder,
                validation_data=held_out,
                num_tokens=args.steps * args.batch_size * args.max_seq_length,
                batch_size=args.batch_size,
                max_seq_length=args.max_seq_length,
                learning_rate=None if default is None else factor * default,
                per_device_eval_batch_size=args.batch_size,
                disable_tqdm=True,
            )
            results = read_json(Path(folder, "all_results.json"))
        default = default or results["learning_rate"]
        rows.append(
            {"factor": factor, **{name: results[name] for name in ("learning_rate", "start_loss", "eval_loss")}}
        )
        write_json(Path(args.output), {"options": vars(args), "environment": describe_environment(), "rows": rows})


if __name__ == "__main__":
    main()
