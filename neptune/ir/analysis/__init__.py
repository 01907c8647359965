"""Facts about expressions, by one walk: signs and ranges, limits, errors, and what false predicates leave unseen."""
