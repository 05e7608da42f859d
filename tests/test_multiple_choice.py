"""Multiple choice is trained as docs/guides/python.md says: by transformers' own Trainer, on an adapted encoder."""

import itertools
from pathlib import Path

import pytest
import torch
from script_runs import save_tiny_bert

import hf_domain

RIGHT, WRONG = ["cell", "gene", "tissue"], ["court", "judge", "stock"]
WORDS = [*RIGHT, *WRONG, "what", "is", "alive"]
ROWS = [
    {"question": "what is alive", "choices": [wrong, right] if number % 2 else [right, wrong], "label": number % 2}
    for number, (right, wrong) in enumerate([*itertools.product(RIGHT, WRONG)] * 4)
]


@pytest.mark.parametrize("method", ["dapt", pytest.param("varmae", marks=pytest.mark.commands)])
def test_the_code_of_the_page_learns(tmp_path, method):
    page = (Path(__file__).parents[1] / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    code = page.partition("## Multiple choice")[2].partition("```python\n")[2].partition("```")[0]
    encoder = save_tiny_bert(tmp_path / "encoder", [" ".join(WORDS)])
    options = {"num_tokens": 1, "max_seq_length": 16, "batch_size": 4, "use_cpu": True, "disable_tqdm": True}
    hf_domain.adapt(encoder, [" ".join(WORDS)] * 40, method, output_dir=tmp_path / "adapted", **options)
    quick = "max_steps=80, report_to='none', use_cpu=True, disable_tqdm=True, save_strategy='no', learning_rate=3e-3"
    code = code.replace('"adapted"', repr(str(tmp_path / "adapted"))).replace("learning_rate=5e-5", quick)
    names = {"rows": ROWS}
    exec(code.replace('"answers"', repr(str(tmp_path / "answers"))), names)
    assert type(names["model"]).__name__ == {"dapt": "Bert", "varmae": "VarMAE"}[method] + "ForMultipleChoice"
    output = names["trainer"].predict(names["examples"])
    right = torch.from_numpy(output.predictions).argmax(-1) == torch.from_numpy(output.label_ids)
    assert right.float().mean() > 0.9
