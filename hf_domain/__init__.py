"""Adapt encoder language models to a domain.

Importing the package registers its models with transformers' Auto classes and its adapter with peft.
`AutoModel.from_pretrained` then loads the models without `trust_remote_code`.
"""

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import product
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_domain.methods.registration import register_on_import
from hf_domain.offline import limit_network

if TYPE_CHECKING:  # for type checkers, which run no code
    from hf_domain.adaptation import adapt as adapt
    from hf_domain.advice import advise as advise
    from hf_domain.comparison.api import compare as compare
    from hf_domain.data.corpora import load_corpus as load_corpus
    from hf_domain.datastore import build_datastore as build_datastore
    from hf_domain.fine_tuning import fine_tune as fine_tune
    from hf_domain.methods.adalm.expand import expand_vocabulary as expand_vocabulary
    from hf_domain.methods.exbert.adapter import ExBertAdapterConfig as ExBertAdapterConfig
    from hf_domain.modeling.modeling_exbert import ExBertConfig as ExBertConfig
    from hf_domain.modeling.modeling_exbert import ExBertForMaskedLM as ExBertForMaskedLM
    from hf_domain.modeling.modeling_exbert import ExBertForMultipleChoice as ExBertForMultipleChoice
    from hf_domain.modeling.modeling_exbert import ExBertForQuestionAnswering as ExBertForQuestionAnswering
    from hf_domain.modeling.modeling_exbert import ExBertForSequenceClassification as ExBertForSequenceClassification
    from hf_domain.modeling.modeling_exbert import ExBertForTokenClassification as ExBertForTokenClassification
    from hf_domain.modeling.modeling_exbert import ExBertModel as ExBertModel
    from hf_domain.modeling.modeling_gmap import GMapConfig as GMapConfig
    from hf_domain.modeling.modeling_gmap import GMapForMaskedLM as GMapForMaskedLM
    from hf_domain.modeling.modeling_gmap import GMapForMultipleChoice as GMapForMultipleChoice
    from hf_domain.modeling.modeling_gmap import GMapForQuestionAnswering as GMapForQuestionAnswering
    from hf_domain.modeling.modeling_gmap import GMapForSequenceClassification as GMapForSequenceClassification
    from hf_domain.modeling.modeling_gmap import GMapForTokenClassification as GMapForTokenClassification
    from hf_domain.modeling.modeling_gmap import GMapModel as GMapModel
    from hf_domain.modeling.modeling_rada import RadaConfig as RadaConfig
    from hf_domain.modeling.modeling_rada import RadaForMaskedLM as RadaForMaskedLM
    from hf_domain.modeling.modeling_rada import RadaForMultipleChoice as RadaForMultipleChoice
    from hf_domain.modeling.modeling_rada import RadaForQuestionAnswering as RadaForQuestionAnswering
    from hf_domain.modeling.modeling_rada import RadaForSequenceClassification as RadaForSequenceClassification
    from hf_domain.modeling.modeling_rada import RadaForTokenClassification as RadaForTokenClassification
    from hf_domain.modeling.modeling_rada import RadaModel as RadaModel
    from hf_domain.modeling.modeling_varmae import VarMAEConfig as VarMAEConfig
    from hf_domain.modeling.modeling_varmae import VarMAEForMaskedLM as VarMAEForMaskedLM
    from hf_domain.modeling.modeling_varmae import VarMAEForMultipleChoice as VarMAEForMultipleChoice
    from hf_domain.modeling.modeling_varmae import VarMAEForQuestionAnswering as VarMAEForQuestionAnswering
    from hf_domain.modeling.modeling_varmae import VarMAEForSequenceClassification as VarMAEForSequenceClassification
    from hf_domain.modeling.modeling_varmae import VarMAEForTokenClassification as VarMAEForTokenClassification
    from hf_domain.modeling.modeling_varmae import VarMAEModel as VarMAEModel
    from hf_domain.prediction import predict as predict

__version__ = "0.1.0"
MODELS = ("ExBert", "GMap", "Rada", "VarMAE")
TASKS = ("MaskedLM", "MultipleChoice", "QuestionAnswering", "SequenceClassification", "TokenClassification")
# The public names, and the modules that define them: each is imported when it is first asked for.
PLACES = {
    "adapt": "adaptation",
    "advise": "advice",
    "build_datastore": "datastore",
    "compare": "comparison.api",
    "expand_vocabulary": "methods.adalm.expand",
    "fine_tune": "fine_tuning",
    "load_corpus": "data.corpora",
    "predict": "prediction",
    "ExBertAdapterConfig": "methods.exbert.adapter",
    **{
        f"{model}{part}": f"modeling.modeling_{model.lower()}"
        for model, part in product(MODELS, ("Config", "Model", *(f"For{task}" for task in TASKS)))
    },
}
__all__ = [*PLACES]
# Names of earlier versions, and the names of the same thing now; or what to do instead. They leave after one version.
RENAMED = {
    "hf_domain.comparison.in_python": "hf_domain.comparison.api",
    "hf_domain.distillation.model": "hf_domain.methods.adalm.model",
    "hf_domain.distillation.new_rows": "Train the new rows by masked LM: hf-domain mlm --expanded_vocabulary.",
    "hf_domain.distillation.students": "hf_domain.methods.adalm.students",
    "hf_domain.ensembles": "hf_domain.prediction",
    "hf_domain.exbert.adapter": "hf_domain.methods.exbert.adapter",
    "hf_domain.exbert.convert": "hf_domain.methods.exbert.convert",
    "hf_domain.exploration.views": "Use the app in examples/explore_app of the repository.",
    "hf_domain.lora": "hf_domain.methods.lora",
    "hf_domain.new_rows": "hf_domain.methods.new_embeddings",
    "hf_domain.predict_together": "hf_domain.predict",
    "hf_domain.publishing": "hf_domain.hub",
    "hf_domain.state_store": "hf_domain.methods.hidden_state_cache",
    "hf_domain.task_training": "hf_domain.fine_tuning",
    "hf_domain.trimming": "hf_domain.methods.adalm.trim",
    "hf_domain.vocabulary": "hf_domain.methods.adalm.expand",
}


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(importlib.import_module(f"hf_domain.{PLACES[name]}"), name)
    if (old := f"{__name__}.{name}") in RENAMED:
        return find_renamed(old)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def find_renamed(old: str) -> Any:
    """Return what had a name in an earlier version, with a warning that names the new place.

    Raises:
        ImportError: It left.
    """
    new = RENAMED[old]
    if new.endswith("."):
        raise ImportError(f"{old} is not part of this version. {new}")
    # The caller is above the function that asks for the name here.
    warnings.warn(f"{old} is {new} now. Use the new name.", DeprecationWarning, stacklevel=3)
    return resolve_name(new)


class RenamedModules(MetaPathFinder, Loader):
    """Finds and loads modules by their names of earlier versions; Python asks it when no other finder knows a name."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module that was renamed, or of a package that held some."""
        is_package = any(old.startswith(f"{name}.") for old in RENAMED)
        return ModuleSpec(name, self, is_package=is_package) if is_package or name in RENAMED else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in the place of the old one."""
        if module.__name__ in RENAMED:
            sys.modules[module.__name__] = find_renamed(module.__name__)


sys.meta_path.append(RenamedModules())
limit_network()
register_on_import()
