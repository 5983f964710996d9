"""How the samples of a data set are divided among clients."""
