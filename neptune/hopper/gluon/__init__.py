"""Kernels with roles as text in Gluon, the lower language of Triton."""
