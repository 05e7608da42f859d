"""The table of methods, which every command, comparison, model card and publication reads.

`METHODS` describes each method: how its model is built from an encoder, its defaults, and the text of its model card.
`RECIPES` in comparison/rows.py defines how a comparison uses the methods. `register_method` adds one, also from another
package, whose entry point in the group `hf_domain.methods` is imported with this table.

The table imports no large library, because the commands read it before they import torch. Each builder has its own
imports.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any

# --------------------------------------------------------------------------------------------- how models are built
# A builder for masked LM gets the stock masked LM, its tokenizer, the delta of an expanded vocabulary (or None), the
# arguments of the command and the options of the method. It returns the model to train.


def build_dapt(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return the encoder itself, with a faster masked-LM loss."""
    from hf_domain.methods.stock_models import decode_labeled_rows_only

    return decode_labeled_rows_only(model)


def build_lora(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return the encoder with low-rank changes; the embedding rows of new tokens train in full."""
    from hf_domain.methods.lora import add_lora
    from hf_domain.methods.stock_models import decode_labeled_rows_only

    return add_lora(decode_labeled_rows_only(model), delta)


def merge_lora(model: Any, output_dir: str) -> Any:
    """Merge the low-rank changes into the weights and save an ordinary model."""
    from hf_domain.methods.lora import merge_lora

    return merge_lora(model, output_dir)


def build_varmae(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return a VarMAE, which does not reconstruct special tokens."""
    from hf_domain.modeling.modeling_varmae import VarMAEForMaskedLM

    special_ids = sorted(set(tokenizer.all_special_ids) - {tokenizer.mask_token_id, tokenizer.unk_token_id})
    return VarMAEForMaskedLM.from_backbone(model, **{"special_token_ids": special_ids, **options})


def prepare_varmae(model: Any, batches: Any) -> None:
    """Measure the batch normalization on masked text, so that training starts at the loss of the encoder."""
    if model.config.residual and model.config.batch_norm:
        model.calibrate(batches)


def build_exbert(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return an exBERT whose extension vocabulary has the new entries."""
    from hf_domain.modeling.modeling_exbert import ExBertForMaskedLM

    return ExBertForMaskedLM.from_backbone(model, extension_vocabulary=delta, **options)


def build_exbert_adapter(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return the encoder with exBERT's modules as an adapter of peft.

    Raises:
        ValueError: The encoder is an exBERT already, or an option would change the encoder.
    """
    from hf_domain.methods.exbert.convert import convert_to_adapter
    from hf_domain.methods.stock_models import decode_labeled_rows_only

    if model.config.model_type == "exbert" or {"freeze_backbone", "backbone_dropout"} & {*options}:
        raise ValueError(
            "an exBERT adapter needs a plain encoder, which stays unchanged, and no option freeze_backbone or "
            f"backbone_dropout, but {args.model_name_or_path} is a {model.config.model_type} and the options are "
            f"{options}. Use --method exbert to train an exBERT further, or to train its base as well."
        )
    exbert = build_exbert(model, tokenizer, delta, args, options)
    return convert_to_adapter(exbert, decode_labeled_rows_only(model))


def save_exbert_adapter(model: Any, output_dir: str) -> Any:
    """Save the adapter, and the exBERT model of adapter and base."""
    from hf_domain.methods.exbert.convert import save_as_model

    return save_as_model(model, output_dir)


def build_gmap(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return a G-MAP: the encoder, reading the encoder of `--memory_name_or_path`.

    Raises:
        ValueError: The two encoders have different tokenizers.
    """
    from transformers import AutoTokenizer

    from hf_domain.methods.gmap.memory import check_same_ids
    from hf_domain.modeling.modeling_gmap import GMapForMaskedLM

    hub_options = {**args.hub_options, "revision": args.memory_revision or "main"}
    check_same_ids(tokenizer, AutoTokenizer.from_pretrained(args.memory_name_or_path, **hub_options))
    options = {"memory_revision": args.memory_revision, "memory_tokenizer": "same", **args.hub_options, **options}
    return GMapForMaskedLM.from_backbones(model, args.memory_name_or_path, dtype=model.dtype, **options)


def build_rada(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return a RADA: the encoder with an interface to retrieved passages."""
    from hf_domain.modeling.modeling_rada import RadaForMaskedLM

    return RadaForMaskedLM.from_backbone(model, **options)


# A builder for a task gets the suffix of its classes (ForSequenceClassification, ...), the arguments of the command,
# and the options of the configuration, including the labels.


def build_gmap_for_task(task: str, args: Any, options: dict[str, Any]) -> Any:
    """Return a G-MAP with the head of a task."""
    from hf_domain.modeling import modeling_gmap
    from hf_domain.modeling.pretrained_gmap import compare_tokenizers

    options = {**options, "memory_revision": args.memory_revision}
    if args.tokenizer_name is not None and "memory_tokenizer" not in options:
        # The run tokenizes its text with this tokenizer, which may differ from the encoder's own.
        options["memory_tokenizer"] = compare_tokenizers(
            args.tokenizer_name,
            args.memory_name_or_path,
            memory_revision=args.memory_revision or "main",
            **args.hub_options,
        )
    model_class = getattr(modeling_gmap, f"GMap{task}")
    return model_class.from_backbones(args.model_name_or_path, args.memory_name_or_path, **args.hub_options, **options)


def build_rada_for_task(task: str, args: Any, options: dict[str, Any]) -> Any:
    """Return a RADA with the head of a task."""
    from hf_domain.modeling import modeling_rada

    model_class = getattr(modeling_rada, f"Rada{task}")
    return model_class.from_backbone(args.model_name_or_path, **args.hub_options, **options)


# ----------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Method:
    """A method, and the text of its model card."""

    title: str
    paper: str
    """Authors, year and link."""
    summary: str
    """The first sentence of the card: what training made from `{base_model}`."""
    citation: str
    """BibTeX."""
    model_type: str | None = None
    """Model type of its checkpoints, whose code is ours; None if the checkpoints are stock models."""
    build: Callable[..., Any] | None = None
    """Builds the model for `hf-domain mlm --method`; None if another method's command trains this one."""
    finish: Callable[[Any, str], Any] | None = None
    """Saves the trained adapter in another form."""
    build_for_task: Callable[..., Any] | None = None
    """Builds the model for `hf-domain classification --method` and the other tasks."""
    start: dict[str, Any] = field(default_factory=dict)
    """Options of the recommended start; `--start paper` omits them, and `--config_overrides` overrides them."""
    learning_rate: float | None = None
    """Minimum learning rate of the added weights with the recommended start; None uses the encoder's rate."""
    prepare: Callable[[Any, Any], None] | None = None
    """Prepares the recommended start on batches of the training text, before the first step."""
    rate_factor: float = 1.0
    """Learning rate of masked LM relative to DAPT's, where less than half of the weights train."""
    trains_stock_model: bool = False
    """Whether its `--method` trains a stock model: it then continues from any checkpoint and has no options."""
    step_cost: float = 1.0
    """Time of a step of masked LM relative to DAPT's, from docs/guides/adapt.md."""
    has_own_loss: bool = False
    """Whether masked LM minimizes more than the cross-entropy of the labels."""
    extends_vocabulary: bool = False
    """Whether the entries of an expanded vocabulary have a table beside the encoder's."""
    reads_memory: bool = False
    """Needs `--memory_name_or_path`."""
    reads_passages: bool = False
    """Needs `--datastore`."""

    def is_built_around(self, model_type: str) -> bool:
        """Return whether a model is built around a checkpoint of this type; otherwise training continues it."""
        return not self.trains_stock_model and self.model_type != model_type


# For DAPT and TAPT.
DONT_STOP_PRETRAINING = """@inproceedings{gururangan-etal-2020-dont,
  title = "Don't Stop Pretraining: Adapt Language Models to Domains and Tasks",
  author = "Gururangan, Suchin and others",
  booktitle = "Proceedings of ACL",
  year = "2020"
}"""

METHODS: dict[str, Method] = {
    "dapt": Method(
        title="DAPT",
        paper="Gururangan et al. 2020, <https://aclanthology.org/2020.acl-main.740>",
        summary="{base_model}, trained further with masked language modeling on text of its domain.",
        citation=DONT_STOP_PRETRAINING,
        build=build_dapt,
        trains_stock_model=True,
    ),
    "tapt": Method(
        title="TAPT",
        paper="Gururangan et al. 2020, <https://aclanthology.org/2020.acl-main.740>",
        summary="{base_model}, trained further with masked language modeling on the text of a task.",
        citation=DONT_STOP_PRETRAINING,
    ),
    "adalm": Method(
        title="AdaLM's vocabulary expansion and DAPT",
        paper="Yao et al. 2021, <https://aclanthology.org/2021.findings-acl.40>",
        summary="{base_model} with words of its domain added to the vocabulary, trained further with masked language "
        "modeling on text of the domain.",
        citation="""@inproceedings{yao-etal-2021-adapt,
  title = "Adapt-and-Distill: Developing Small, Fast and Effective Pretrained Language Models for Domains",
  author = "Yao, Yunzhi and others",
  booktitle = "Findings of ACL-IJCNLP",
  year = "2021"
}""",
    ),
    "lora": Method(
        title="DAPT with LoRA",
        step_cost=0.7,
        paper="Hu et al. 2021, <https://arxiv.org/abs/2106.09685>",
        summary="{base_model}, trained further with masked language modeling on text of its domain by low-rank "
        "changes, which are merged into its weights.",
        citation="""@inproceedings{hu-etal-2022-lora,
  title = "{LoRA}: Low-Rank Adaptation of Large Language Models",
  author = "Hu, Edward J. and others",
  booktitle = "Proceedings of ICLR",
  year = "2022"
}""",
        build=build_lora,
        rate_factor=3.5,
        finish=merge_lora,
        trains_stock_model=True,
    ),
    "varmae": Method(
        title="VarMAE",
        step_cost=0.4,
        has_own_loss=True,
        paper="Hu et al. 2022, <https://aclanthology.org/2022.findings-emnlp.468>",
        summary="{base_model} with a context-uncertainty module, trained by variational masked autoencoding on text of "
        "its domain; the encoder itself was {encoder}.",
        citation="""@inproceedings{hu-etal-2022-varmae,
  title = "{V}ar{MAE}: Pre-training of Variational Masked Autoencoder for Domain-adaptive Language Understanding",
  author = "Hu, Dou and others",
  booktitle = "Findings of EMNLP",
  year = "2022"
}""",
        model_type="varmae",
        build=build_varmae,
        # At DAPT's rate: at 1e-3 it first unlearned what its encoder knew. On biomedical text, its loss was still above
        # the encoder's after 200 steps (results/NOTES.md). The paper's random start has further to go.
        # The mean starts as the encoder's state and the noise is low, so a frozen encoder's predictions stay the same.
        # Heads of tasks read it before the normalization: states of another scale need other rates than the encoder's.
        # The KL weight is the smallest of the paper's candidates for lambda: with 10, the noise is back at full size
        # after 200 steps. A share of the unmasked tokens has the same loss in expectation, at two thirds of the cost.
        start={
            "unmasked_ratio": 0.15,
            "residual": True,
            "normalized_states": False,
            "log_variance_init": -4.0,
            "kl_weight": 1.0,
            "unmasked_kl_weight": 1.0,
        },
        prepare=prepare_varmae,
    ),
    "exbert": Method(
        title="exBERT",
        paper="Tai et al. 2020, <https://aclanthology.org/2020.findings-emnlp.129>",
        summary="{base_model} with {extension}, trained with masked language modeling on text of its domain; the "
        "encoder itself was {encoder}.",
        citation="""@inproceedings{tai-etal-2020-exbert,
  title = "ex{BERT}: Extending Pre-trained Models with Domain-specific Vocabulary Under Constrained Training Resources",
  author = "Tai, Wen and others",
  booktitle = "Findings of EMNLP",
  year = "2020"
}""",
        model_type="exbert",
        build=build_exbert,
        # Small new networks beside a frozen encoder bear a higher rate.
        rate_factor=3.5,
        # Side modules start as parts of the layers beside them, with a weight of a twentieth.
        start={"side_init": "base", "gate_bias_init": 3.0, "extension_init": "pieces"},
        extends_vocabulary=True,
    ),
    "gmap": Method(
        title="G-MAP",
        paper="Wan et al. 2022, <https://arxiv.org/abs/2212.03613>",
        summary="{base_model}, trained further with masked language modeling on text of its domain while its layers "
        "read a general encoder as memory, which was {memory}.",
        citation="""@inproceedings{wan-etal-2022-g,
  title = "{G}-{MAP}: General Memory-Augmented Pre-trained Language Model for Domain Tasks",
  author = "Wan, Zhongwei and others",
  booktitle = "Proceedings of EMNLP",
  year = "2022"
}""",
        model_type="gmap",
        build=build_gmap,
        build_for_task=build_gmap_for_task,
        start={"starts_as_encoder": True},
        # At 1e-3, two of three seeds learned to read too little of the memory (docs/methods/gmap.md).
        learning_rate=2e-3,
        reads_memory=True,
    ),
    "rada": Method(
        title="RADA",
        paper="Xu et al. 2023, <https://aclanthology.org/2023.repl4nlp-1.5>",
        summary="{base_model} with an interface that reads retrieved passages, trained by masked language modeling on "
        "text of its domain. Without passages it computes what its encoder alone computes.",
        citation="""@inproceedings{xu-etal-2023-retrieval,
  title = "Retrieval-Augmented Domain Adaptation of Language Models",
  author = "Xu, Benfeng and others",
  booktitle = "Proceedings of the 8th Workshop on Representation Learning for NLP (RepL4NLP 2023)",
  year = "2023"
}""",
        model_type="rada",
        build=build_rada,
        build_for_task=build_rada_for_task,
        # Selection starts with the order of the retrieval, which one word of a passage can overrule. It becomes more
        # decided in training. A frozen encoder reads the passages: a cache encodes each once, for all epochs and seeds.
        start={
            "passage_encoder": "frozen",
            "scores": "logsumexp",
            "prior_scale_init": 4.0,
            "temperature": 2.0,
            "final_temperature": 0.3,
            "final_noise": 0.0,
        },
        learning_rate=1e-3,
        reads_passages=True,
    ),
}
# Training starts from a stock model; the result is published as an exBERT model.
METHODS["exbert_adapter"] = replace(
    METHODS["exbert"],
    title="exBERT as an adapter",
    model_type=None,
    build=build_exbert_adapter,
    finish=save_exbert_adapter,
)

# The method that all others are compared with.
BASELINE = "dapt"
NO_ADAPTATION = "no_adaptation"
PLAIN = "plain"
PRETRAINING_METHODS: list[str] = []
"""Choices of `hf-domain mlm --method`."""
TASK_METHODS = [PLAIN]
"""Choices of `hf-domain classification --method` and the other tasks; the first is the encoder alone."""
OWN_TYPES: list[str] = []
"""Model types whose code travels with a checkpoint; all other types belong to transformers."""


def register_method(name: str, method: Method) -> None:
    """Add a method to the table, so that every command, comparison, card and publication knows it.

    Args:
        name: What `--method` and a plan call it.

    Raises:
        ValueError: Another method has the name.
    """
    if METHODS.setdefault(name, method) is not method:
        raise ValueError(f"a method must have a name of its own, but {name} is taken. Use another name.")
    lists = ((PRETRAINING_METHODS, method.build and name), (TASK_METHODS, method.build_for_task and name))
    for names, added in (*lists, (OWN_TYPES, method.model_type)):
        if added and added not in names:
            names.append(added)


def find_methods(model_type: str) -> list[Method]:
    """Return the methods with checkpoints of this type; empty for a stock model."""
    return [method for method in METHODS.values() if method.model_type == model_type]


for _name, _method in [*METHODS.items()]:
    register_method(_name, _method)
for _point in entry_points(group="hf_domain.methods"):
    _point.load()
