"""Runs as one self-contained page, and the same charts as image files."""
