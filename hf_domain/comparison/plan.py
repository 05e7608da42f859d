"""The plan of a comparison: which methods make an encoder of a domain, which tasks test it, and at which cost.

The docstring of examples/compare.py shows a whole one. Paths are relative to the plan; `pretraining`, `fine_tuning`,
`vocabulary` and `datastore` are flags of run_mlm.py, the scripts of the tasks, run_expand_vocab.py, build_datastore.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hf_domain.methods import BASELINE, RECIPES, Recipe

SPLITS = ("train", "validation", "test")
METRICS = {
    "classification": ("macro_f1", "micro_f1", "positive_micro_f1"),
    "multi_label": ("macro_f1", "micro_f1"),
    "regression": ("pearson", "spearman"),
    "ner": ("entity_f1", "token_f1"),
    "qa": ("f1", "exact_match"),
}


@dataclass
class Corpus:
    """Text of a domain, and text of the same kind that no method is trained on."""

    train_file: str
    validation_file: str = ""
    """Empty: every twentieth document of `train_file`, drawn at random, is held out."""


@dataclass
class Task:
    """A folder with train, validation and test as .jsonl; with folds, train may be all of it."""

    folder: str
    kind: Literal["classification", "multi_label", "regression", "ner", "qa", ""] = ""
    """Empty: found from the columns of the training file."""
    corpus: str = ""
    """Of its domain; empty: the only one beside the general one."""
    metric: str = ""
    """One of `METRICS`; empty takes the first of the kind."""
    options: dict[str, Any] = field(default_factory=dict)
    folds: int | None = None
    """Cross-validate over the items of all files with so many folds: every item is a test item."""

    def get_file(self, split: str, fold: int | None = None) -> str:
        """Return the file of a split, of the task or of one of its folds."""
        return f"{self.folder}/{split}.jsonl" if fold is None else f"{self.folder}/fold{fold}/{split}.jsonl"

    def list_folds(self) -> list[int | None]:
        """List the folds; None stands for the task's own split."""
        return [None] if self.folds is None else [*range(1, self.folds + 1)]


@dataclass
class Method:
    """A row of the report."""

    recipe: str = ""
    """A key of `RECIPES`; empty: the name of the method."""
    after: str | None = None
    """Another method whose encoder this one starts from, instead of the plan's."""
    encoder: str | None = None
    """A checkpoint made elsewhere that this one starts from, instead of the plan's."""
    share: float = 0.5
    """Of the tokens of a rung, where the method trains on after another one: the other has the rest."""
    tasks: list[str] | None = None
    """The tasks that it is tested on; default all."""
    counterpart: str | None = None
    """The method of equal pre-training that it is compared with; default that of the recipe, see `find_counterpart`."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    """Flags of a datastore of its own, such as `train_file`."""


@dataclass
class Budget:
    """What pre-training of each method may cost: one of the two."""

    tokens: int | list[int] | None = None
    """A list trains each encoder once, up to the largest number, and scores it at each of them."""
    minutes: float | None = None

    @property
    def rungs(self) -> list[int]:
        """The numbers of tokens at which encoders are scored, in order; empty where there is a single one."""
        return sorted(self.tokens) if isinstance(self.tokens, list) else []


@dataclass
class Plan:
    """What is compared. See the docstring of the module."""

    encoder: str
    corpora: dict[str, Corpus]
    tasks: dict[str, Task]
    methods: dict[str, Method]
    budget: Budget
    general: str | None = None
    evaluation: Literal["fine_tune", "probe"] = "fine_tune"
    """How encoders are scored: fine-tuned with each seed, or frozen, by a logistic regression on their states."""
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    """Of fine-tuning."""
    pretraining_seeds: list[int] = field(default_factory=lambda: [42])
    """Each encoder is trained with each of them, and fine-tuned with each of `seeds`."""
    learning_rates: list[float] = field(default_factory=list)
    """Of fine-tuning: each method takes the one that is best on the validation set of a task, with the first seed."""
    labels: list[float] = field(default_factory=list)
    """Shares of the training examples with which rows are scored as well, beside all of them."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    path: Path = Path("plan.yaml")
    """Where the plan stands; its paths are relative to the folder."""

    @property
    def folder(self) -> Path:
        """The folder of the plan, where every command runs."""
        return self.path.parent

    def get_recipe(self, method: str) -> Recipe:
        """Return how a method makes its encoder."""
        return RECIPES[self.methods[method].recipe]

    def get_root(self, method: str) -> str:
        """Return the first of the methods that a method starts from, or itself."""
        while (after := self.methods[method].after) is not None:
            method = after
        return method

    def find_counterpart(self, method: str) -> str | None:
        """Return the method whose pre-training costs as much, so that the difference is what the method adds.

        A method that trains no encoder itself has that of the method it starts from. One that goes on from another's
        has no equal, unless the plan names it.
        """
        options, recipe = self.methods[method], self.get_recipe(method)
        if options.counterpart is not None or (options.after is not None and recipe.method is None):
            return options.counterpart or options.after
        same = recipe.counterpart in self.methods and self.methods[str(recipe.counterpart)]
        return recipe.counterpart if same and (same.after, same.encoder) == (options.after, options.encoder) else None

    def list_pairs(self) -> list[tuple[str, str]]:
        """List the comparisons of the plan: each method with its counterpart, and with the baseline."""
        pairs = [(method, other) for method in self.methods for other in (self.find_counterpart(method), BASELINE)]
        return [(own, other) for own, other in dict.fromkeys(pairs) if other in self.methods and own != other]

    def is_made_of_task(self, method: str | None) -> bool:
        """Return whether a method, or one that it starts from, is made of the text of the task."""
        while method is not None:
            if self.get_recipe(method).text == "task":
                return True
            method = self.methods[method].after
        return False

    def list_methods(self, task: str) -> list[str]:
        """List the methods that are tested on a task: with folds none that is made of its text, which is all tested."""
        chosen = [name for name, method in self.methods.items() if method.tasks is None or task in method.tasks]
        return [name for name in chosen if self.tasks[task].folds is None or not self.is_made_of_task(name)]
