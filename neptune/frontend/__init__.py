"""What users write: the builder's expressions, TVM tensor expressions and TVMScript, as Programs."""
