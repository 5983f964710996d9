"""What annotations say of the values that they let in."""

from typing import Annotated, Any, get_args, get_origin

from fedkeel.ranges import Range


def has_range(wanted: Any) -> bool:
    """Whether every number that an annotation lets in has its range written beside it."""
    if get_origin(wanted) is Annotated:
        return any(isinstance(one, Range) for one in get_args(wanted)[1:])
    return wanted not in (int, float) and all(has_range(one) for one in get_args(wanted) if one is not ...)
