"""The layers of our models that LoRA changes, as patterns of their names: apart from lora.py, which imports peft."""

# The memory of G-MAP and the frozen passage encoder of RADA, which their methods never train.
SECOND_ENCODERS = r"(.*\.)?(memory|passage_backbone)\..*"
# Queries and values, as peft takes of the stock encoders of all families, also of exBERT's side modules. RADA's
# interface is taken whole: its output starts at zero, and without that it would add nothing.
LORA_TARGETS = (
    rf"(?!{SECOND_ENCODERS})"
    r"(.*\.(query|value|query_proj|value_proj|q_lin|v_lin|Wqkv|query_key_value)|(.*\.)?interface\.(key|output))"
)
