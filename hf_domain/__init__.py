"""Adapt encoder language models to a domain.

Importing the package registers its models with transformers' Auto classes and its adapter with peft.
`AutoModel.from_pretrained` then loads the models without `trust_remote_code`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hf_domain.methods.registration import register_on_import
from hf_domain.offline import limit_network

if TYPE_CHECKING:
    from hf_domain.adaptation import adapt
    from hf_domain.advice import advise
    from hf_domain.comparison.api import compare
    from hf_domain.data.corpora import load_corpus
    from hf_domain.datastore import build_datastore
    from hf_domain.fine_tuning import fine_tune
    from hf_domain.methods.adalm.expand import expand_vocabulary
    from hf_domain.methods.exbert.adapter import ExBertAdapterConfig
    from hf_domain.modeling.modeling_exbert import (
        ExBertConfig,
        ExBertForMaskedLM,
        ExBertForMultipleChoice,
        ExBertForQuestionAnswering,
        ExBertForSequenceClassification,
        ExBertForTokenClassification,
        ExBertModel,
    )
    from hf_domain.modeling.modeling_gmap import (
        GMapConfig,
        GMapForMaskedLM,
        GMapForMultipleChoice,
        GMapForQuestionAnswering,
        GMapForSequenceClassification,
        GMapForTokenClassification,
        GMapModel,
    )
    from hf_domain.modeling.modeling_rada import (
        RadaConfig,
        RadaForMaskedLM,
        RadaForMultipleChoice,
        RadaForQuestionAnswering,
        RadaForSequenceClassification,
        RadaForTokenClassification,
        RadaModel,
    )
    from hf_domain.modeling.modeling_varmae import (
        VarMAEConfig,
        VarMAEForMaskedLM,
        VarMAEForMultipleChoice,
        VarMAEForQuestionAnswering,
        VarMAEForSequenceClassification,
        VarMAEForTokenClassification,
        VarMAEModel,
    )
    from hf_domain.prediction import predict

__version__ = "0.1.0"
__all__ = [
    "ExBertAdapterConfig",
    "ExBertConfig",
    "ExBertForMaskedLM",
    "ExBertForMultipleChoice",
    "ExBertForQuestionAnswering",
    "ExBertForSequenceClassification",
    "ExBertForTokenClassification",
    "ExBertModel",
    "GMapConfig",
    "GMapForMaskedLM",
    "GMapForMultipleChoice",
    "GMapForQuestionAnswering",
    "GMapForSequenceClassification",
    "GMapForTokenClassification",
    "GMapModel",
    "RadaConfig",
    "RadaForMaskedLM",
    "RadaForMultipleChoice",
    "RadaForQuestionAnswering",
    "RadaForSequenceClassification",
    "RadaForTokenClassification",
    "RadaModel",
    "VarMAEConfig",
    "VarMAEForMaskedLM",
    "VarMAEForMultipleChoice",
    "VarMAEForQuestionAnswering",
    "VarMAEForSequenceClassification",
    "VarMAEForTokenClassification",
    "VarMAEModel",
    "adapt",
    "advise",
    "build_datastore",
    "compare",
    "expand_vocabulary",
    "fine_tune",
    "load_corpus",
    "predict",
]
# The most used functions, and their modules.
FUNCTIONS = {
    "adapt": "adaptation",
    "advise": "advice",
    "build_datastore": "datastore",
    "compare": "comparison.api",
    "expand_vocabulary": "methods.adalm.expand",
    "fine_tune": "fine_tuning",
    "load_corpus": "data.corpora",
    "predict": "prediction",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in FUNCTIONS:
        return getattr(importlib.import_module(f"hf_domain.{FUNCTIONS[name]}"), name)
    method = name.partition("For")[0].removesuffix("Config").removesuffix("Model").lower()
    module = "methods.exbert.adapter" if "Adapter" in name else f"modeling.modeling_{method}"
    return getattr(importlib.import_module(f"hf_domain.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


limit_network()
register_on_import()
