"""The command line. Data go to stdout, progress and messages to stderr."""
