"""Corruptions of images, as CIFAR-10-C and feature shifts use them."""
