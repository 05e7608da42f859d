"""Patterns of the layers of our models that LoRA changes; not in lora.py, which imports peft."""

# The memory of G-MAP and the frozen passage encoder of RADA, which their methods never train.
SECOND_ENCODERS = r"(.*\.)?(memory|passage_backbone)\..*"
# Queries and values, peft's choice for stock encoders of all families, and the same in exBERT's side modules. RADA's
# interface has LoRA in all layers: its output layer starts at zero and must train, or the interface adds nothing. The
# same is true of the outputs of G-MAP's memory, with its recommended start.
LORA_TARGETS = (
    rf"(?!{SECOND_ENCODERS})"
    r"(.*\.(query|value|query_proj|value_proj|q_lin|v_lin|Wqkv|query_key_value)|(.*\.)?interface\.(key|output)"
    r"|(.*\.)?memory_outputs\.\d+)"
)
