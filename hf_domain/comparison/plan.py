"""The plan of a comparison: the methods that make an encoder of a domain, the tasks that test it, and the budget.

The docstring of examples/compare.py shows a complete plan. Paths are relative to the plan. `pretraining`,
`fine_tuning`, `vocabulary` and `datastore` are flags of run_mlm.py, the scripts of the tasks, run_expand_vocab.py,
build_datastore.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hf_domain.comparison.rows import RECIPES, Recipe
from hf_domain.methods import BASELINE
from hf_domain.tasks.files import Task


@dataclass
class Corpus:
    """Text of a domain, and held-out text of the same kind."""

    train_file: str
    validation_file: str = ""
    """If empty, every twentieth document of `train_file`, drawn at random, is held out."""


@dataclass
class Row:
    """A row of the report."""

    recipe: str = ""
    """A key of `RECIPES`; if empty, the name of the method."""
    after: str | None = None
    """Another method whose encoder is the start, instead of the plan's encoder; default the recipe's, if there is."""
    encoder: str | None = None
    """A checkpoint made elsewhere that is the start, instead of the plan's encoder."""
    share: float = 0.5
    """Its share of a rung's tokens, if it starts from another method's encoder; the other method has the rest."""
    tasks: list[str] | None = None
    """The tasks that test it; default all."""
    counterpart: str | None = None
    """The method of equal pre-training to compare it with; default the recipe's, see `find_counterpart`."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    """Flags of its own datastore, such as `train_file`."""


@dataclass
class Budget:
    """The cost of each method's pre-training, in tokens or in minutes."""

    tokens: int | list[int] | None = None
    """A list trains each encoder once, up to the largest number, and scores it at every number. Rows that start after
    another one then share the tokens with it; with a single number without a list they cost twice as much."""
    minutes: float | None = None

    @property
    def rungs(self) -> list[int]:
        """The numbers of tokens at which encoders are scored, ascending; empty without a list."""
        return sorted(self.tokens) if isinstance(self.tokens, list) else []


@dataclass
class Plan:
    """A comparison; see the docstring of the module."""

    encoder: str
    corpora: dict[str, Corpus]
    tasks: dict[str, Task]
    methods: dict[str, Row]
    budget: Budget
    general: str | None = None
    evaluation: Literal["fine_tune", "probe"] = "fine_tune"
    """How encoders are scored: fine-tuned with each seed, or frozen under a logistic regression on their states."""
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    """Seeds of fine-tuning."""
    pretraining_seeds: list[int] = field(default_factory=lambda: [42])
    """Seeds of pre-training; each encoder is fine-tuned with each of `seeds`."""
    learning_rates: list[float] = field(default_factory=list)
    """Rates of fine-tuning to choose from: each method takes the best on a task's validation set, at the first seed."""
    labels: list[float] = field(default_factory=list)
    """Shares of the training examples with which rows are scored as well, beside all of them."""
    race: bool = False
    """Whether rows that are clearly behind on validation leave at a number of tokens, see `race`."""
    keep_models: Literal["best", "all", "none"] = "best"
    """Which fine-tuned models are kept; best: for each task the one with the best validation score."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    path: Path = Path("plan.yaml")
    """The plan's file; its paths are relative to the folder."""

    @property
    def folder(self) -> Path:
        """The folder of the plan, where every command runs."""
        return self.path.parent

    def get_recipe(self, method: str) -> Recipe:
        """Return the recipe of a method."""
        return RECIPES[self.methods[method].recipe]

    def get_root(self, method: str) -> str:
        """Return the first method in the chain that a method starts from, or the method itself."""
        while (after := self.methods[method].after) is not None:
            method = after
        return method

    def find_counterpart(self, method: str) -> str | None:
        """Return the method with equal pre-training costs, so that the difference shows what the method adds.

        A method that trains no encoder has the counterpart of the method it starts from. A method that continues from
        another one's encoder has none, unless the plan names one.
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
        """Return whether a method, or one in its chain, trains on the text of the task."""
        while method is not None:
            if self.get_recipe(method).reads_task:
                return True
            method = self.methods[method].after
        return False

    def list_methods(self, task: str) -> list[str]:
        """List the methods tested on a task; with folds, none that trains on its text, since all of it is tested."""
        chosen = [name for name, method in self.methods.items() if method.tasks is None or task in method.tasks]
        return [name for name in chosen if self.tasks[task].folds is None or not self.is_made_of_task(name)]
