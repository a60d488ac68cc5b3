"""Triton kernels, imported only where triton exists."""
