"""python -m fedkeel, and the console script: a signal or a closed stream is met from the first moment on."""

from __future__ import annotations

import sys

from fedkeel.cli.stopping import leave_at_once
from fedkeel.streams import open_missing


def main() -> None:
    leave_at_once()
    open_missing()
    from fedkeel.cli.main import call  # the large modules

    sys.exit(call(sys.argv[1:]))


if __name__ == "__main__":
    main()
