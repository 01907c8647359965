"""Schedule templates: short functions over a schedule, one operator family a module.

`neptune.compile(expr, "flash_attention")` runs `neptune.templates.flash_attention.flash_attention`.
"""
