"""A follower of runs that interrupts one."""


class StopAfter:
    """Interrupt a run after so many rounds, as Ctrl-C does."""

    def __init__(self, rounds):
        self.rounds = rounds

    def started(self, experiment, done, engine):
        pass

    def round(self, record):
        if record.round == self.rounds:
            raise KeyboardInterrupt

    def finished(self, run):
        pass
