"""Diagnostics: pure functions on trees and models, and `subject.py`, which gets those out of a run."""
