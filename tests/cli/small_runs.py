"""Words of a command line that train in a moment."""

SMALL = ["--dataset", "digits", "--model", "logistic", "--set", "epochs=1", "--engine", "serial"]
