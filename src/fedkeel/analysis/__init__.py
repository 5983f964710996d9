"""Diagnostics: numbers in, numbers out."""
