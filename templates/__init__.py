"""Schedule templates: short functions over a schedule, one operator family a module, to use and to copy.

`neptune.compile(expr, "flash_attention")` runs `neptune.templates.flash_attention.flash_attention`. The folder stands
at the root of the repository, and `neptune/templates` is a link to it: there is one name to import it by.
"""

if __name__ != "neptune.templates":
    raise ImportError(f"this package is neptune.templates, not {__name__}")
