"""Diagnostics: pure functions from trees and models to numbers."""
