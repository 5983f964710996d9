"""A method, a rule, a partition and a network for fedkeel."""
