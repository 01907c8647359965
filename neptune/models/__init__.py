"""Models of `transformers` on Neptune's attention: one call, then `attn_implementation="neptune"`.

import neptune.models
neptune.models.register()
model = LlamaForCausalLM.from_pretrained(…, attn_implementation="neptune")
"""

from __future__ import annotations

from neptune.models.interface import register as register

__all__ = ["register"]
