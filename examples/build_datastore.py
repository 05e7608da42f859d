r"""Build a datastore of passages for RADA, add documents to it, rebuild its index, or search it.

    python examples/build_datastore.py \
        --model_name_or_path bert-base-uncased --train_file corpus.txt.gz --output_dir datastore

RADA must be trained on text that is not in its datastore. `--held_out_file rest.jsonl` writes every tenth document to
this file instead; train with `run_mlm.py --method rada --datastore datastore --train_file rest.jsonl`.

`--query` shows the passages that a text finds:

    python examples/build_datastore.py --output_dir datastore --query "bilateral lung lesions"

Repeat the command to resume an interrupted build. With `--engine elasticsearch` or `opensearch`, set
ELASTICSEARCH_URL or OPENSEARCH_URL. docs/guides/datastore.md has the details.
"""

from hf_domain.datastore import Datastore, push_to_hub
from hf_domain.datastore.flags import DatastoreArguments, DocumentArguments, build_or_open
from hf_domain.training.arguments import parse_arguments

ARGUMENTS = (DocumentArguments, DatastoreArguments)


def main() -> None:
    data_args, args = parse_arguments(*ARGUMENTS, description=__doc__)
    datastore = build_or_open(data_args, args)
    manifest = datastore.manifest
    print(
        f"{len(datastore):,} passages from {manifest.num_documents:,} documents ({manifest.num_duplicates:,} "
        f"duplicates left out, analyzer {manifest.analyzer}) in {datastore.folder}"
    )
    if args.push_to_hub_id:
        print(push_to_hub(datastore, args.push_to_hub_id))
    for query in args.query:
        print(f"\nPassages for: {query}")
        show_passages(datastore, query, args.num_passages)


def show_passages(datastore: Datastore, query: str, count: int) -> None:
    ((ids, scores),) = datastore.search([query], count)
    for rank, (passage, score) in enumerate(zip(datastore.passages.select(ids), scores, strict=True), 1):
        text = (
            f"{rank}. passage {passage['id']}, document {passage['document_id']}, score {score:.2f}: {passage['text']}"
        )
        # Control characters of somebody else's text could command the terminal.
        print("".join(character if character.isprintable() else " " for character in text))
    if not ids:
        print("None has a word in common with this text.")


if __name__ == "__main__":
    main()
