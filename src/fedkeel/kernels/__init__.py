"""Layers of many clients at once, each with weights of its own: plain PyTorch as reference, Triton on a GPU."""
