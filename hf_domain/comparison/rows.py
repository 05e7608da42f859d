"""The table of rows that a plan's `methods` may name.

A row defines the method of methods/ that trains its encoder, the text, and the flags. To add a row, add it here; a
method that another package registers is a row by its name. What is one flag of another row is no row of its own:
`{recipe: dapt, pretraining: {mlm_probability: 0.3}}`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_domain.methods import METHODS


@dataclass(frozen=True)
class Recipe:
    """How a comparison uses a method, with default flags that a plan may override."""

    title: str
    method: str | None = None
    """`--method` of the masked-LM stage; None without such a stage."""
    text: Literal["domain", "general", "task"] = "domain"
    """Text of the masked-LM stage or the datastore."""
    control: str | None = "dapt"
    """The recipe with equal pre-training that shows what this one adds, if there is one."""
    note: str = ""
    """One sentence on how it differs from its method, for the help."""
    after: str | None = None
    """The row that it starts from by default; None if it can start from the plan's encoder."""
    expands_vocabulary: bool = False
    old_words: bool = False
    """Whether tasks that label words take the tokenizer of the plan's encoder, which has no new words."""
    reads_datastore: bool = False
    fine_tuning: dict[str, Any] = field(default_factory=dict)


RECIPES = {
    "no_adaptation": Recipe("no adaptation", control=None),
    "general_text": Recipe("general text", method="dapt", text="general", control=None),
    "dapt": Recipe("DAPT", method="dapt", control="general_text"),
    "tapt": Recipe("TAPT", method="dapt", text="task"),
    "tapt_after_dapt": Recipe("TAPT", method="dapt", text="task", after="dapt"),
    "lora": Recipe("DAPT with LoRA", method="lora", expands_vocabulary=True),
    "varmae": Recipe("VarMAE", method="varmae"),
    # A few thousand sentences label most new words too rarely. Their pieces occur in other words, too.
    "adalm": Recipe(
        "AdaLM vocabulary + DAPT",
        method="dapt",
        note="Tasks with entities are fine-tuned with the old tokenizer, without the new words.",
        expands_vocabulary=True,
        old_words=True,
    ),
    "exbert": Recipe("exBERT", method="exbert", expands_vocabulary=True),
    "gmap": Recipe("G-MAP", after="dapt", fine_tuning={"method": "gmap"}),
    "gmap_mlm": Recipe("G-MAP with its masked-LM stage", method="gmap"),
    "rada": Recipe("RADA", control="no_adaptation", reads_datastore=True, fine_tuning={"method": "rada"}),
    "rada_mlm": Recipe(
        "RADA with its masked-LM stage",
        method="rada",
        reads_datastore=True,
        fine_tuning={"method": "rada"},
    ),
    "vote": Recipe(
        "vote of the nearest training texts",
        after="dapt",
        fine_tuning={"nearest_vote": True},
    ),
}

# Names of earlier versions.
RENAMED = {"fine_tune": "no_adaptation", "control": "general_text"}
PAPER = "pretraining: {start: paper}"
# Rows of earlier versions -> the row that each is a variant of, and what to write in a plan instead.
INSTEAD = {
    "adalm_paper": ("adalm", "{recipe: adalm, fine_tuning: {tokenizer_name: null}}"),
    "append_passage": ("no_adaptation", "`hf-domain classification --append_passage` by hand"),
    "average": (
        "no_adaptation",
        "hf_domain.averaging.average_models, and the row {recipe: no_adaptation, encoder: FOLDER}",
    ),
    "clm_detour": ("dapt", "`hf-domain mlm --objective clm` by hand, and {recipe: dapt, encoder: FOLDER}"),
    "domain_words": ("dapt", "{recipe: dapt, pretraining: {whole_word_mask: true}}"),
    "exbert_adapter": ("exbert", "exbert, which trains the same weights"),
    "exbert_paper": ("exbert", f"{{recipe: exbert, {PAPER}, fine_tuning: {{train_top_layers: 3}}}}"),
    "gmap_paper": ("gmap", "{recipe: gmap, fine_tuning: {start: paper}}"),
    "keywords": ("dapt", "{recipe: dapt, pretraining: {whole_word_mask: true}}"),
    "longer": ("no_adaptation", "{recipe: no_adaptation, fine_tuning: {num_train_epochs: 9}}"),
    "mask_30": ("dapt", "{recipe: dapt, pretraining: {mlm_probability: 0.3}}"),
    "nearest": ("tapt", "tapt, with a train_file of your choice in pretraining"),
    "rada_paper": ("rada", "{recipe: rada, fine_tuning: {start: paper}}"),
    "rada_task": ("rada", "{recipe: rada, datastore: {train_file: TEXTS OF THE TASK}}"),
    "random_words": ("dapt", "{recipe: dapt, pretraining: {whole_word_mask: true}}"),
    "replay": ("dapt", '{recipe: dapt, pretraining: {mix: "GENERAL TEXT:0.1"}}'),
    "varmae_paper": ("varmae", f"{{recipe: varmae, {PAPER}}}"),
}
RECIPES |= {
    name: Recipe(
        row.title,
        method=name if row.build else None,
        expands_vocabulary=row.extends_vocabulary,
        reads_datastore=row.reads_passages,
        fine_tuning={"method": name} if row.build_for_task else {},
    )
    for name, row in METHODS.items()
    if name not in RECIPES and name not in INSTEAD
}

ROWS = "rows that `methods` may name:\n" + "".join(
    f"  {name:16} {row.title}{f', after {row.after}' if row.after else ''}{row.note and f'. {row.note}'}\n"
    for name, row in RECIPES.items()
)
"""Shown by `hf-domain compare --help`."""


def explain_recipe(name: str) -> str | None:
    """Return why there is no recipe of this name, and what to write instead; None if there is one."""
    if name in RECIPES:
        return None
    if name in INSTEAD:
        return f"recipe must be a row of this version, but {name} is none any more. Use {INSTEAD[name][1]}."
    return f"recipe must be one of {', '.join(RECIPES)}, but is {name}. Set one of them."
