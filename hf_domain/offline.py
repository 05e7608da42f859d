"""Limit network use to what the user asks for; with `HF_DOMAIN_OFFLINE=1`, nothing leaves this machine."""

import os
import sys

SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")
TRUE = ("1", "ON", "YES", "TRUE")


def limit_network() -> None:
    """Set the environment variables of the libraries below, before they are imported and read them.

    Raises:
        RuntimeError: `HF_DOMAIN_OFFLINE` is set, but a library that may use the network is imported already.
    """
    # Otherwise a server counts every load of a local file.
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    if os.environ.get("HF_DOMAIN_OFFLINE", "").upper() not in TRUE:
        return
    late = "huggingface_hub" in sys.modules and os.environ.get("HF_HUB_OFFLINE", "").upper() not in TRUE
    if late:
        raise RuntimeError(
            "with HF_DOMAIN_OFFLINE=1, hf_domain must be imported before huggingface_hub, but huggingface_hub is "
            "imported already. Import hf_domain first, or set HF_HUB_OFFLINE=1 as well."
        )
    os.environ |= dict.fromkeys(SWITCHES, "1") | {"HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_MODE": "offline"}
