"""torch's operators of single values as expressions: one table, for the mods of attention and for regions of graphs."""
