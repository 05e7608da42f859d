"""Write the card of an adapter."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

USAGE = """# {name}

An exBERT adapter of {base}, which itself stays unchanged.

```python
import hf_domain  # makes this adapter's type known to peft
from peft import PeftModel
from transformers import AutoModelForMaskedLM

base = AutoModelForMaskedLM.from_pretrained({quoted_base})
model = PeftModel.from_pretrained(base, {place})
```

The package hf-domain must be installed and imported first: without it, peft stops with `KeyError: 'EXBERT'`.

"""


def write_adapter_card(folder: str | Path, base: str, name: str, subfolder: str | None = None) -> None:
    """Write how to load an adapter above what a person wrote into its card, and clear peft's local paths.

    Args:
        folder: Has the saved adapter.
        base: A name on the Hub, or a folder, which the card cuts to its last name; empty if unknown.
        name: Name that users of the adapter will write.
        subfolder: Where the adapter is below that name.
    """
    path = Path(folder, "README.md")
    is_local = not base or Path(base).exists() or Path(base).is_absolute()  # absolute: it may be gone
    known = None if is_local else base
    card = ModelCard.load(path) if path.exists() else ModelCard("---\nlibrary_name: peft\n---\n")
    if "import hf_domain" not in card.text:
        own = "" if "More Information Needed" in card.text else card.text  # peft's template has 30 empty sections
        shown = known or Path(base).name or "base"
        place = json.dumps(name) + (f", subfolder={json.dumps(subfolder)}" if subfolder else "")
        card.text = USAGE.format(name=name, base=shown, quoted_base=json.dumps(shown), place=place) + own
    # peft takes a local path for a name on the Hub, also in a tag.
    data: Any = card.data
    data.base_model, data.base_model_relation = known, "adapter" if known else None
    tags = [tag for tag in data.tags or [] if known or not tag.startswith("base_model:")]
    data.tags = sorted({*tags, "hf-domain"})
    card.save(path)
