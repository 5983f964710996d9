"""The methods: each is its paper's algorithm, spelled with rules."""

from fedkeel.methods.registry import METHODS, PLUGINS, build, hyperparameters, makers_of, papers_of, settings_of
