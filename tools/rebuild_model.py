"""Train the encoder of a published comparison again, and make its folder for the Hub, with the published scores.

    python tools/rebuild_model.py verdict.yaml --results results/verdict --method tapt --corpus jnlpba --output_dir hub

The plan lies beside the encoder and the data that it names. The published results are put into the comparison's folder,
which is named after the plan, and only the encoder is trained, from the plan's seed; an encoder that is there is not.
The card says how long this training took, and repeats the published scores.
"""

import argparse
import json
import lzma
from pathlib import Path

from hf_domain.comparison.engine import gather_results, list_missing, open_cluster, prepare_jobs, run_jobs
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.publication import make_publication
from hf_domain.comparison.results import find_results
from hf_domain.comparison.runner import has_output
from hf_domain.safe_io import lock_folder, write_json

NOTE = "The encoder's and the corpora's own licenses apply; name them before you publish."
LIMITS = "Made to compare methods on a small budget. It was tested on the tasks below alone."


def restore_results(results: Path, addresses: set[str], output_dir: Path) -> None:
    """Make the folder of a comparison, with each line of a file of published results; a result that is there stays.

    Args:
        addresses: Those of the plan's steps. They contain digests of the encoder and the data.

    Raises:
        ValueError: No result is of these steps.
    """
    with lzma.open(results / "results.jsonl.xz", "rt", encoding="utf-8") as lines:
        published = {result.pop("name"): result for result in map(json.loads, lines)}
    if not published.keys() & {f"{address}.json" for address in addresses}:
        raise ValueError(
            f"the encoder and the data beside the plan must be those of {results}, but none of its {len(published)} "
            "results was computed from them. Compare their files with those of the published plan, to the byte."
        )
    for name in ("locks", "results"):
        (output_dir / name).mkdir(parents=True, exist_ok=True)
    for name, result in published.items():
        if not (file := output_dir / "results" / name).is_file():
            write_json(file, result)


def main() -> None:
    """Train the encoder and make the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, help="YAML file of the plan, beside the encoder and the data.")
    parser.add_argument("--results", type=Path, required=True, help="Folder with results.jsonl.xz of this plan.")
    parser.add_argument("--method", required=True, help="Row of the plan.")
    parser.add_argument("--corpus", required=True, help="Corpus of the encoder; for TAPT, the task.")
    parser.add_argument("--output_dir", type=Path, required=True, help="Folder for the Hub.")
    parser.add_argument("--example", default="We train a language [MASK].", help="Text for the card.")
    args = parser.parse_args()
    output_dir, name = args.plan.with_suffix("").resolve(), f"{args.method}-{args.corpus}"
    plan = load_plan(args.plan.resolve(), output_dir)
    jobs, _ = prepare_jobs(plan, output_dir)
    by_name = {job.name: job for job in jobs if job.step.kind == "pretraining"}
    if name not in by_name:
        raise ValueError(f"--method and --corpus must name an encoder of the plan, {', '.join(by_name)}, not {name}")
    restore_results(args.results, {job.address for job in jobs}, output_dir)
    gather_results(plan, output_dir)
    results = find_results(output_dir, {job.name: job.address for job in jobs})
    if not has_output(by_name[name].step, output_dir / "steps" / by_name[name].address):
        with lock_folder(output_dir), open_cluster(1, None) as (client, run):
            run_jobs(client, list_missing(jobs, {name}, output_dir), results, plan, output_dir, run)
    if not (result := find_results(output_dir, {name: by_name[name].address})[name]).is_done:
        raise RuntimeError(f"{name} failed: {result.error}")
    folder = make_publication(
        output_dir,
        args.output_dir,
        method=args.method,
        corpus=args.corpus,
        model_name=args.output_dir.name,
        license=None,
        license_note=NOTE,
        limits=LIMITS,
        example=args.example,
    )
    print(f"Ready for the Hub: {folder}")


if __name__ == "__main__":
    main()
