"""What leaves this machine: nothing that the user did not ask for, and nothing at all with `HF_DOMAIN_OFFLINE=1`."""

import os
import sys

SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")
TRUE = ("1", "ON", "YES", "TRUE")


def limit_network() -> None:
    """Set the switches of the libraries below, before they are imported and read them.

    Raises:
        RuntimeError: `HF_DOMAIN_OFFLINE` is set, and a library was imported before that may use the network.
    """
    # Otherwise a server would count every load of a local file.
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    if os.environ.get("HF_DOMAIN_OFFLINE", "").upper() not in TRUE:
        return
    late = "huggingface_hub" in sys.modules and os.environ.get("HF_HUB_OFFLINE", "").upper() not in TRUE
    if late:
        raise RuntimeError(
            "HF_DOMAIN_OFFLINE=1 must take effect before huggingface_hub is imported, but it is imported "
            "already. Import hf_domain first, or set HF_HUB_OFFLINE=1 as well."
        )
    os.environ |= dict.fromkeys(SWITCHES, "1") | {"HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_MODE": "offline"}
