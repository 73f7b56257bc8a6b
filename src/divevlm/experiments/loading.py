"""What experiments run on: processes and hardware."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch
import transformers

import divevlm


def rank() -> tuple[int, int]:
    """The number of this process and how many there are, as torchrun and accelerate launch say."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def machine() -> dict[str, Any]:
    """Versions and hardware."""
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "divevlm": divevlm.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "system": platform.system(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "processes": rank()[1],
    }
