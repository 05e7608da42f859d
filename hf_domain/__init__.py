"""Adapt encoder language models to a domain.

Importing the package registers its models with transformers' Auto classes, so that `AutoModel.from_pretrained` loads
them without `trust_remote_code`, and its adapter with peft.
"""

import transformers

from hf_domain.adapters import ExBertAdapterConfig
from hf_domain.modeling import modeling_exbert, modeling_gmap, modeling_rada, modeling_varmae
from hf_domain.modeling.modeling_exbert import (
    ExBertConfig,
    ExBertForMaskedLM,
    ExBertForQuestionAnswering,
    ExBertForSequenceClassification,
    ExBertForTokenClassification,
    ExBertModel,
)
from hf_domain.modeling.modeling_gmap import (
    GMapConfig,
    GMapForMaskedLM,
    GMapForQuestionAnswering,
    GMapForSequenceClassification,
    GMapForTokenClassification,
    GMapModel,
)
from hf_domain.modeling.modeling_rada import (
    RadaConfig,
    RadaForMaskedLM,
    RadaForQuestionAnswering,
    RadaForSequenceClassification,
    RadaForTokenClassification,
    RadaModel,
)
from hf_domain.modeling.modeling_varmae import (
    VarMAEConfig,
    VarMAEForMaskedLM,
    VarMAEForQuestionAnswering,
    VarMAEForSequenceClassification,
    VarMAEForTokenClassification,
    VarMAEModel,
)

__version__ = "0.1.0"
__all__ = [
    "ExBertAdapterConfig",
    "ExBertConfig",
    "ExBertForMaskedLM",
    "ExBertForQuestionAnswering",
    "ExBertForSequenceClassification",
    "ExBertForTokenClassification",
    "ExBertModel",
    "GMapConfig",
    "GMapForMaskedLM",
    "GMapForQuestionAnswering",
    "GMapForSequenceClassification",
    "GMapForTokenClassification",
    "GMapModel",
    "RadaConfig",
    "RadaForMaskedLM",
    "RadaForQuestionAnswering",
    "RadaForSequenceClassification",
    "RadaForTokenClassification",
    "RadaModel",
    "VarMAEConfig",
    "VarMAEForMaskedLM",
    "VarMAEForQuestionAnswering",
    "VarMAEForSequenceClassification",
    "VarMAEForTokenClassification",
    "VarMAEModel",
]

for _config_class, _module in (
    (ExBertConfig, modeling_exbert),
    (GMapConfig, modeling_gmap),
    (RadaConfig, modeling_rada),
    (VarMAEConfig, modeling_varmae),
):
    transformers.AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
    _base_class = getattr(_module, _config_class.__name__.removesuffix("Config") + "Model")
    for _auto_class, _path in _base_class.auto_classes.items():
        if _auto_class != "AutoConfig":
            _model_class = getattr(_module, _path.rpartition(".")[2])
            getattr(transformers, _auto_class).register(_config_class, _model_class, exist_ok=True)
