"""`neptune.kernel.variants` under the name that it had, for those who import `Variant` from here."""

from neptune.kernel.variants import Variant as Variant
