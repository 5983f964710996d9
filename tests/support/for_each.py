"""One test of many small cases, for where a test of its own for each would take longer than the case."""

from collections.abc import Callable, Iterable
from typing import Any


def for_each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Call the test with each case, as `pytest.mark.parametrize` would; the error says which case failed."""
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else names
    given = [dict(zip(words, case if len(words) > 1 else [case], strict=True)) for case in cases]
    assert given, "a test without cases"

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def test_cases() -> None:
            for case in given:
                try:
                    test(**case)
                except BaseException as error:
                    error.add_note(f"in the case {case}")
                    raise

        test_cases.__name__, test_cases.__doc__, test_cases.__module__ = test.__name__, test.__doc__, test.__module__
        return test_cases

    return decorate
