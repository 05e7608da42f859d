"""Model cards, and publishing a folder in one commit."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData

# Weights that run code when they are loaded; a published folder never holds one.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass
class Method:
    """What a model card says of a method."""

    name: str
    paper: str
    summary: str
    citation: str
    is_stock: bool = False


METHODS = {
    "dapt": Method(
        name="DAPT",
        paper="Gururangan et al. 2020, <https://aclanthology.org/2020.acl-main.740>",
        summary="{base_model}, trained further with masked language modeling on text of its domain.",
        citation="""@inproceedings{gururangan-etal-2020-dont,
  title = "Don't Stop Pretraining: Adapt Language Models to Domains and Tasks",
  author = "Gururangan, Suchin and others",
  booktitle = "Proceedings of ACL",
  year = "2020"
}""",
        is_stock=True,
    ),
    "varmae": Method(
        name="VarMAE",
        paper="Hu et al. 2022, <https://aclanthology.org/2022.findings-emnlp.468>",
        summary="{base_model} with a context-uncertainty module, trained by variational masked autoencoding on text of "
        "its domain; the encoder itself was frozen.",
        citation="""@inproceedings{hu-etal-2022-varmae,
  title = "{V}ar{MAE}: Pre-training of Variational Masked Autoencoder for Domain-adaptive Language Understanding",
  author = "Hu, Dou and others",
  booktitle = "Findings of EMNLP",
  year = "2022"
}""",
    ),
    "rada": Method(
        name="RADA",
        paper="Xu et al. 2023, <https://aclanthology.org/2023.repl4nlp-1.5>",
        summary="{base_model} with an interface that reads retrieved passages, trained by masked language modeling on "
        "text of its domain. Without passages it is its encoder alone.",
        citation="""@inproceedings{xu-etal-2023-retrieval,
  title = "Retrieval-Augmented Domain Adaptation of Language Models",
  author = "Xu, Benfeng and others",
  booktitle = "Proceedings of the 8th Workshop on Representation Learning for NLP (RepL4NLP 2023)",
  year = "2023"
}""",
    ),
}

USAGE = """from transformers import pipeline

fill_mask = pipeline("fill-mask", model="{name}"{trust})
print(fill_mask("{example}"))"""


def write_model_card(
    folder: str | Path,
    *,
    method: str,
    model_name: str,
    base_model: str,
    corpus: str,
    settings: dict[str, Any],
    limits: str,
    licence: str | None,
    licence_note: str,
    example: str,
    language: str = "en",
    results_table: str | None = None,
    results_note: str = "",
    plot: str | None = None,
) -> Path:
    """Write README.md into the folder of a masked LM.

    Args:
        folder: Folder of the saved model.
        method: A key of `METHODS`.
        model_name: Name of the model, as its users will write it.
        base_model: The encoder it was made from.
        corpus: The text it was trained on.
        settings: Hyper-parameters and costs, name to value.
        limits: What it was not tested for.
        licence: Identifier of the licence of the weights, as the Hub writes it; None if it is not settled.
        licence_note: Licences of base model and data.
        example: A sentence with the tokenizer's mask token, for the usage snippet.
        language: Code of the language of the corpus.
        results_table: A Markdown table of measured results.
        results_note: What it was measured on.
        plot: File name of a plot in the folder.

    Returns:
        The path of the card.

    Raises:
        ValueError: The method is not known.
    """
    if method not in METHODS:
        raise ValueError(f"a model card is of one of {', '.join(METHODS)}; got {method}")
    about = METHODS[method]
    trust = "" if about.is_stock else ", trust_remote_code=True"
    card = ModelCard.from_template(
        ModelCardData(
            language=language,
            license=licence,
            library_name="transformers",
            pipeline_tag="fill-mask",
            tags=["hf-domain", method],
            base_model=base_model if "/" in base_model and not Path(base_model).exists() else None,
        ),
        template_str=(files("hf_domain") / "model_card.md").read_text(encoding="utf-8"),
        model_name=model_name,
        summary=about.summary.format(base_model=base_model),
        base_model=base_model,
        corpus=corpus,
        method_name=about.name,
        paper=about.paper,
        usage=USAGE.format(name=model_name, trust=trust, example=example),
        trust=trust,
        results_table=results_table,
        results_note=results_note,
        plot=plot,
        settings=settings,
        limits=limits,
        licence_note=licence_note,
        citation=about.citation,
    )
    path = Path(folder) / "README.md"
    card.save(path)
    return path


def publish(folder: str | Path, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
    """Push a folder (weights, tokenizer, code and card) to the Hub in one commit.

    Args:
        folder: A saved model with its README.md.
        repo_id: Repository, made if it does not exist.
        private: Whether a new repository is private.
        token: Hub token; None takes the one of `hf auth login`.

    Returns:
        The address of the commit.

    Raises:
        ValueError: The folder is not a whole publication, or holds a pickle.
    """
    folder = Path(folder)
    names = {file.name for file in folder.iterdir()}
    if missing := sorted({"config.json", "tokenizer_config.json", "README.md"} - names):
        raise ValueError(f"a publication holds model, tokenizer and card; {folder} lacks {', '.join(missing)}")
    if pickles := sorted(name for name in names if name.endswith(PICKLE_SUFFIXES) and name != "training_args.bin"):
        raise ValueError(f"a publication holds safetensors only; {folder} has {', '.join(pickles)}: remove them")
    api = HfApi(token=token)
    api.create_repo(repo_id, private=private, exist_ok=True)
    # Checkpoints, optimizer states and Trainer's pickled arguments stay at home.
    ignored = ["checkpoint-*", "*.unfinished", "training_args.bin", "runs/*"]
    commit = api.upload_folder(
        repo_id=repo_id, folder_path=folder, ignore_patterns=ignored, commit_message="Publish the model"
    )
    return commit.commit_url
