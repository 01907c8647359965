"""Tests never read or write the user's cache of compiled kernels; those of the cache name a folder of their own."""

from __future__ import annotations

import os

os.environ["NEPTUNE_CACHE_DIR"] = "0"
