"""The table of rows that a plan's `methods` may name.

A row defines the method of methods.py that trains its encoder, the text, and the flags. To add a row, add it here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_domain.methods import BASELINE, METHODS


@dataclass(frozen=True)
class Recipe:
    """How a comparison uses a method, with default flags that a plan may override."""

    title: str
    method: str | None = None
    """`--method` of the masked-LM stage; None without such a stage."""
    text: Literal["domain", "general", "task", "nearest"] = "domain"
    """Text of the masked-LM stage or the datastore; "nearest" is that of the task with the passages it finds."""
    card: str | None = None
    """The method of the model card; None if the recipe trains no domain model."""
    counterpart: str | None = "dapt"
    """The recipe with equal pre-training that shows what this one adds, if any."""
    note: str = ""
    """One sentence on how it differs from its method, for model cards and for the help."""
    after: str | None = None
    """The row that it starts from by default; None if it can start from the plan's encoder."""
    expands_vocabulary: bool = False
    old_words: tuple[str, ...] = ()
    """Kinds of tasks that are fine-tuned with the tokenizer of the plan's encoder, which has no new words."""
    averages: bool = False
    reads_datastore: bool = False
    kinds: tuple[str, ...] | None = None
    """Kinds of tasks that it supports; None for all."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    """Flags of the masked-LM stage; `{domain}` and `{general}` are replaced by the training files of the corpora."""
    first_stage: dict[str, Any] = field(default_factory=dict)
    """Flags that differ before the decay of the learning rate; empty for a single stage."""
    fine_tuning: dict[str, Any] = field(default_factory=dict)

    @property
    def reads_task(self) -> bool:
        """Whether it trains on the texts of the task, so that it is not tested on folds."""
        return self.text in ("task", "nearest")

    @property
    def needs_datastore(self) -> bool:
        """Whether it reads passages, or chooses its text among them."""
        return self.reads_datastore or self.text == "nearest"

    @property
    def needs_general(self) -> bool:
        """Whether it reads the plan's general text."""
        return self.text == "general" or "{general}" in str(self.pretraining)


# Learning rates are our choice, as in the quickstart. exBERT trains small new networks on a frozen encoder, so its rate
# is higher. VarMAE starts at its encoder, and at 1e-3 first unlearned what that knew: on biomedical text, its loss was
# still above the encoder's after 200 steps (results/NOTES.md). The paper's random start has further to go.
VARMAE_TRAINING = {"learning_rate": 3e-4, "config_overrides": "unmasked_ratio=0.15"}
EXBERT_TRAINING = {"learning_rate": 1e-3}
# The share of masked words, and thus the cost, is DAPT's; only the choice of the words differs.
WORD_MASKING = {"learning_rate": 3e-4, "whole_word_mask": True, "word_counts": ["{domain}", "{general}"]}
# A frozen encoder reads the passages, so they are encoded once for all epochs and seeds.
FROZEN_PASSAGES = {"config_overrides": "passage_encoder=frozen"}
RECIPES = {
    "fine_tune": Recipe("fine-tuning only", counterpart=None),
    "control": Recipe(
        "general text", method="dapt", text="general", counterpart=None, pretraining={"learning_rate": 3e-4}
    ),
    "tapt": Recipe("TAPT", method="dapt", text="task", card="tapt", pretraining={"learning_rate": 3e-4}),
    "dapt": Recipe("DAPT", method="dapt", card="dapt", counterpart="control", pretraining={"learning_rate": 3e-4}),
    "lora": Recipe(
        "DAPT with LoRA", method="lora", card="lora", expands_vocabulary=True, pretraining={"learning_rate": 1e-3}
    ),
    "tapt_after_dapt": Recipe(
        "TAPT",
        method="dapt",
        text="task",
        card="tapt",
        after="dapt",
        pretraining={"learning_rate": 3e-4},
    ),
    "nearest": Recipe(
        "TAPT with the nearest text",
        method="dapt",
        text="nearest",
        card="tapt",
        note="To the texts of the task come the passages of the domain that are nearest to them.",
        pretraining={"learning_rate": 3e-4},
    ),
    "mask_30": Recipe(
        "30 % masking",
        method="dapt",
        card="dapt",
        note="Training masks 30 % of the tokens instead of 15 %.",
        pretraining={"learning_rate": 3e-4, "mlm_probability": 0.3},
    ),
    "random_words": Recipe(
        "random-word masking",
        method="dapt",
        card="dapt",
        note="Training masks whole words, 5,000 random ones four times as often as others.",
        pretraining={**WORD_MASKING, "word_rule": "random"},
    ),
    "domain_words": Recipe(
        "domain-word masking",
        method="dapt",
        card="dapt",
        counterpart="random_words",
        note="Training masks whole words, those that are much rarer in general text four times as often as others.",
        pretraining={**WORD_MASKING, "word_rule": "ratio"},
    ),
    "keywords": Recipe(
        "keyword masking",
        method="dapt",
        card="dapt",
        counterpart="random_words",
        note="Training masks whole words, keywords of the domain (by log-likelihood) four times as often as others.",
        pretraining={**WORD_MASKING, "word_rule": "keyword"},
    ),
    "clm_detour": Recipe(
        "causal detour",
        method="dapt",
        card="dapt",
        note="Training predicts next tokens, with causal attention, then masked ones while the learning rate falls.",
        pretraining={"learning_rate": 3e-4},
        first_stage={"objective": "clm"},
    ),
    "replay": Recipe(
        "replay",
        method="dapt",
        card="dapt",
        note="A tenth of the training text is general text.",
        pretraining={"learning_rate": 3e-4, "mix": "{general}:0.1"},
    ),
    "average": Recipe("average with the base", after="dapt", averages=True),
    "varmae": Recipe(
        "VarMAE",
        method="varmae",
        card="varmae",
        pretraining=VARMAE_TRAINING,
    ),
    "varmae_paper": Recipe(
        "VarMAE from the paper's start",
        method="varmae",
        card="varmae",
        pretraining={**VARMAE_TRAINING, "learning_rate": 1e-3, "start": "paper"},
    ),
    # A few thousand sentences label most new words too rarely. Their pieces occur in other words, too.
    "adalm": Recipe(
        "AdaLM vocabulary + DAPT",
        method="dapt",
        card="adalm",
        note="Tasks with entities are fine-tuned with the old tokenizer, without the new words.",
        expands_vocabulary=True,
        old_words=("ner",),
        pretraining={"learning_rate": 3e-4},
    ),
    "adalm_paper": Recipe(
        "AdaLM with its words in every task",
        method="dapt",
        card="adalm",
        note="Tasks with entities read the new words, too.",
        expands_vocabulary=True,
        pretraining={"learning_rate": 3e-4},
    ),
    "exbert": Recipe("exBERT", method="exbert", card="exbert", expands_vocabulary=True, pretraining=EXBERT_TRAINING),
    "exbert_paper": Recipe(
        "exBERT from the paper's start",
        method="exbert",
        card="exbert",
        note="Fine-tuning trains only the head and the top three layers.",
        expands_vocabulary=True,
        pretraining={**EXBERT_TRAINING, "start": "paper"},
        fine_tuning={"train_top_layers": 3},
    ),
    "exbert_adapter": Recipe(
        "exBERT as an adapter",
        method="exbert_adapter",
        card="exbert",
        expands_vocabulary=True,
        pretraining=EXBERT_TRAINING,
    ),
    "gmap": Recipe("G-MAP", after="dapt", fine_tuning={"method": "gmap"}),
    "gmap_paper": Recipe(
        "G-MAP from the paper's start", after="dapt", fine_tuning={"method": "gmap", "start": "paper"}
    ),
    "gmap_mlm": Recipe(
        "G-MAP with its masked-LM stage", method="gmap", card="gmap", pretraining={"learning_rate": 3e-4}
    ),
    "rada": Recipe(
        "RADA", counterpart="fine_tune", reads_datastore=True, fine_tuning={"method": "rada", **FROZEN_PASSAGES}
    ),
    "rada_paper": Recipe(
        "RADA from the paper's start",
        counterpart="fine_tune",
        reads_datastore=True,
        fine_tuning={"method": "rada", "start": "paper", **FROZEN_PASSAGES},
    ),
    # Few passages per block: a corpus has many blocks, and each retrieved passage is encoded once.
    "rada_mlm": Recipe(
        "RADA with its masked-LM stage",
        method="rada",
        card="rada",
        reads_datastore=True,
        pretraining={"learning_rate": 3e-4, "num_passages": 3, **FROZEN_PASSAGES},
        fine_tuning={"method": "rada"},
    ),
    "rada_task": Recipe(
        "RADA over the training set of the task",
        text="task",
        counterpart="fine_tune",
        reads_datastore=True,
        fine_tuning={"method": "rada", **FROZEN_PASSAGES},
    ),
    "append_passage": Recipe(
        "best passage appended",
        counterpart="fine_tune",
        reads_datastore=True,
        kinds=("classification", "multi_label", "regression"),
        fine_tuning={"append_passage": True},
    ),
    "vote": Recipe(
        "vote of the nearest training texts",
        after="dapt",
        kinds=("classification", "multi_label", "regression"),
        fine_tuning={"nearest_vote": True},
    ),
    # Three times the epochs of the scripts, less than the time of the pre-training in our results.
    "longer": Recipe(
        "longer fine-tuning",
        counterpart="fine_tune",
        note="Fine-tuning takes nine epochs, whatever the plan says, without a pre-training.",
        fine_tuning={"num_train_epochs": 9},
    ),
}


ROWS = "rows that `methods` may name:\n" + "".join(
    f"  {name:16} {row.title}{f', after {row.after}' if row.after else ''}{row.note and f'. {row.note}'}\n"
    for name, row in RECIPES.items()
)
"""Shown by `hf-domain compare --help`."""


def check_start(name: str, earlier: Sequence[str]) -> list[str]:
    """Return why a recipe cannot start from an encoder that another recipe made; empty if it can.

    Args:
        earlier: Names of the recipes that made the encoder, the last one first.
    """
    recipe, before = RECIPES[name], {other: RECIPES[other] for other in earlier if other in RECIPES}
    expanding = [other for other, row in before.items() if row.expands_vocabulary]
    trained = {other: METHODS[row.method] for other, row in before.items() if row.method is not None}
    if recipe.reads_datastore and expanding:
        return [
            f"{name} needs an encoder with the plan's tokenizer, which cuts the passages, but {', '.join(expanding)} "
            "expands the vocabulary. Start from another method."
        ]
    if recipe.fine_tuning.get("append_passage") and any(method.reads_passages for method in trained.values()):
        reading = ", ".join(other for other, method in trained.items() if method.reads_passages)
        return [
            f"{name} appends a passage, so its encoder must not read passages, but {reading} does. Start from another "
            "method."
        ]
    own = METHODS.get(str(recipe.method))
    is_adapter = own is not None and own.finish is not None and own.extends_vocabulary
    if is_adapter and (extended := [other for other, method in trained.items() if method.extends_vocabulary]):
        return [
            f"{name} must start from a plain encoder, but {', '.join(extended)} makes an exBERT. Start from another "
            "method."
        ]
    if recipe.averages and before and not trained:
        return [
            f"{name} needs a trained encoder to average with, but {', '.join(before)} does not train one. Start from "
            "another method."
        ]
    others = [other for other, method in trained.items() if method is not METHODS[BASELINE] or other in expanding]
    if recipe.averages and others:
        return [
            f"{name} needs two encoders with the same parameters, but {', '.join(others)} changes them. Start from "
            "another method."
        ]
    return []
