"""Worker processes that several tests use, one after another: to start one takes as long as a hundred small rounds."""

from fedkeel.engines import processes

Started = processes.Worker
"""A worker as it is: killed when its engine is closed."""


class Lasting(Started):
    """Waits for the next engine when its own is closed, unless it still owes an answer or has died."""

    waiting: list["Lasting"] = []  # noqa: RUF012

    def __init__(self, number):
        super().__init__(number)
        self.owed = 0

    def ask(self, kind, payload):
        self.owed += 1
        super().ask(kind, payload)

    def answer(self):
        self.owed -= 1
        return super().answer()

    def close(self):
        if self.owed or self.process.poll() is not None:
            super().close()
        else:
            Lasting.waiting.append(self)


def worker(number):
    if not Lasting.waiting:
        return Lasting(number)
    taken = Lasting.waiting.pop()
    taken.number = number
    return taken


def close_all():
    while Lasting.waiting:
        Started.close(Lasting.waiting.pop())
