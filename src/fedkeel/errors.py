"""What can go wrong, as a tree. Each message is one line that names the value; each hint says what to do.

FedkeelError
├── RequestError         the request was wrong: exit code 2
│   ├── ExperimentError      a key or value of an experiment
│   ├── MethodError          rules that do not fit together
│   ├── DataError            a data set that is missing, damaged or cannot be divided so
│   ├── ModelError           an unknown model, or one that does not fit the data
│   ├── FolderError          a run folder that is foreign, busy, read-only or damaged
│   └── UntrustedError       a file names code that nobody vouches for
└── RunError             the run failed while it was running: exit code 1
    └── OwnCodeError         the user's own code failed
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from fedkeel.text import in_one_line, make_printable, shorten

MESSAGE, HINT, WORD = 500, 2000, 80
"""The most characters of a message, of a hint and of a word to look up: files may echo long texts through them."""


class FedkeelError(Exception):
    """All that fedkeel itself refuses or reports: catch it to catch them all.

    `message` is one line that names the value, `hint` says what to do (None where nobody knows), and `exit_code` is
    what the command line ends with.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None):
        self.message = shorten(make_printable(message), MESSAGE)
        self.hint = None if hint is None else shorten(make_printable(hint), HINT)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"

    def __reduce__(self) -> tuple[type[FedkeelError], tuple[str, str | None]]:
        return type(self), (self.message, self.hint)


class RequestError(FedkeelError):
    """What was asked for cannot be done: an argument, a name or a value is wrong.

    Change the request as the hint says; the same one again fails again.
    """

    exit_code = 2


class ExperimentError(RequestError):
    """An experiment has a key that there is not, or a value that is out of range or does not fit the others.

    It is raised when the experiment is made, or when it meets its data. Change the key that the message names.
    """


class MethodError(RequestError):
    """A method is unknown, has a hyper-parameter out of range, or rules that do not fit together or fit the problem.

    `fedkeel methods NAME` shows what a method takes; change the rule or hyper-parameter that the message names.
    """


class DataError(RequestError):
    """A data set is unknown, missing, damaged or too small to be divided so, or data of one's own have another form.

    `fedkeel datasets NAME` shows a set and where it is kept; of your own data, mend what the message names.
    """


class ModelError(RequestError):
    """A network is unknown, cannot be built, or does not take the data.

    `fedkeel models` lists the names; choose another, or another shape of the data.
    """


class FolderError(RequestError):
    """A folder is no run or that of another experiment, or it is busy, damaged, or closed to writing.

    Choose another folder, wait for the process that writes there, or restore the file that the message names.
    """


class UntrustedError(RequestError):
    """A file names code that is not fedkeel's and that nobody vouches for, so it was not imported.

    Read that code; if you trust who wrote it, say so: `trust=True`, on the command line `--trust`.
    """


class RunError(FedkeelError):
    """A sound request failed while it was carried out: a model diverged, a disk was full, a worker or a machine died.

    With a folder, the run stands at its last checkpoint: mend the cause, and the same call again goes on from there.
    """

    exit_code = 1


class OwnCodeError(RunError):
    """The user's own code failed: a network, a loss, a rule. The message names its file and line: mend that.

    The command line says it so. `fk.run` raises the error of that code itself, as it is.
    """


def blame_own_code(error: BaseException) -> OwnCodeError | None:
    """Say where the user's code failed: the last line on the way to an error that no installed package has.

    A worker process has said it already, as the error's `own_code`.
    """
    if (told := getattr(error, "own_code", None)) is not None:
        return cast(OwnCodeError, told)
    way = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    ours = next((place for place, frame in enumerate(way) if is_in(frame.filename, PACKAGE)), len(way))
    theirs = [frame for frame in way[ours:] if not any(is_in(frame.filename, place) for place in INSTALLED)]
    if not theirs:
        return None
    last = theirs[-1]
    said = f"{type(error).__name__}: {in_one_line(error)}"
    return OwnCodeError(f"{last.filename}, line {last.lineno}, in {last.name}: {said}", TRACEBACK)


PACKAGE = Path(__file__).parent.resolve()
INSTALLED = (PACKAGE, *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")))
TRACEBACK = "this line is yours, not fedkeel's; FEDKEEL_TRACEBACK=1 shows the way to it"


def is_in(file: str, folder: Path) -> bool:
    return Path(file).resolve().is_relative_to(folder)


NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def explain_os_errors(
    fault: str, hint: str, error: type[FedkeelError] = FolderError, *, full: str | None = None
) -> Iterator[None]:
    """Turn an error of the system within the block into one line, the fault and the reason, and a hint; `full` is the
    hint where no space is left."""
    try:
        yield
    except OSError as problem:
        if problem.errno == errno.EMFILE:
            hint = "let a process open more files: ulimit -n 1024"
        elif problem.errno in NO_SPACE:
            hint = full or hint
        raise error(f"{fault}: {problem.strerror}", hint) from problem


def writing(path: Path, hint: str = "choose another place") -> contextlib.AbstractContextManager[None]:
    """Make what the system refuses within the block an error about the path that was asked for."""
    return explain_os_errors(f"cannot write {path}", hint)


def refuse_folder(file: Path, example: str) -> None:
    """Refuse a folder where the name of a file is needed, before any work is done."""
    if file.is_dir():
        raise FolderError(f"{file} is a folder, and a file is to be written.", f"for example: {file / example}")


def require_known(
    word: str, known: Collection[str], fault: str, what: str, error: type[FedkeelError] = RequestError
) -> str:
    """Return a word that is known; refuse another, or what is no word, with the fault and the nearest known one."""
    if not isinstance(word, str) or word not in known:
        raise error(f"{fault}: {word}", nearest(str(word), known, what))
    return word


def nearest(word: str, known: Iterable[str], what: str) -> str:
    """Hint at the known word nearest to one that is not known, or list all of them."""
    choices, word = sorted(known), word[:WORD]
    bare = {choice.lstrip("-").lower(): choice for choice in choices}  # dashes make all options alike
    close = difflib.get_close_matches(word.lstrip("-").lower(), bare, n=1)
    return f"did you mean {bare[close[0]]!r}?" if close else f"known {what}: {', '.join(choices)}"


def ask_for_object(kind: type) -> str:
    """Hint at what is meant where a class was given."""
    return f"an object is meant, not its class: {kind.__name__}(…)"


Called = TypeVar("Called", bound=Callable[..., Any])


def explain_typos(what: str, error: type[FedkeelError] = RequestError, **elsewhere: str) -> Callable[[Called], Called]:
    """Let a function or a class refuse an argument that it does not have with the nearest one that it has, and too few
    or too many with all of them. `elsewhere` are names that others use, with the name here: precision="dtype"."""

    def explained(called: Called) -> Called:
        inner: Any = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]
        signature = inspect.signature(inner)
        known = [name for name in signature.parameters if name != "self"]

        @functools.wraps(inner)
        def checked(*given: Any, **named: Any) -> Any:
            for word in named.keys() - known:
                meant = f"did you mean {elsewhere[word]!r}?" if word in elsewhere else None
                raise error(f"{what} has no argument: {word}", meant or nearest(word, known, "arguments"))
            bind(signature, given, named, what, error)
            return inner(*given, **named)

        if isinstance(called, type):
            called.__init__ = checked  # type: ignore[misc]
            return called
        return checked  # type: ignore[return-value]

    return explained


def bind(
    signature: inspect.Signature, given: Sequence[Any], named: Mapping[str, Any], what: str, error: type[FedkeelError]
) -> inspect.BoundArguments:
    """Lay arguments out as a signature has them; refuse too few or too many in one line."""
    try:
        return signature.bind(*given, **named)
    except TypeError as problem:
        known = [name for name in signature.parameters if name != "self"]
        raise error(f"{what}: {problem}", f"its arguments: {', '.join(known) or 'none'}") from None
