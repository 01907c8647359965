"""Tiles brought to other dims, as Triton text: unit dimensions by subscripts, permutations by `tl.trans`."""

from __future__ import annotations

from neptune.errors import InternalError


def subscript(source: tuple[str, ...], target: tuple[str, ...]) -> str | None:
    """`[:, None]` and the like that lifts dims `source` into `target` by inserting units, or None.

    >>> subscript(("m",), ("m", "1")), subscript(("n",), ("m", "n")), subscript(("m",), ("m",))
    ('[:, None]', '[None, :]', '')
    """
    left = list(source)
    marks = []
    for d in target:
        if left and left[0] == d:
            left.pop(0)
            marks.append(":")
        else:
            marks.append("None")
    if left:
        return None
    return f"[{', '.join(marks)}]" if "None" in marks else ""


def permutation(source: tuple[str, ...], target: tuple[str, ...]) -> list[int] | None:
    """The order of `source` dims that matches `target`, in which "1" stands for any dim."""
    if len(source) != len(target):
        return None
    free = [k for k, d in enumerate(source) if d == "1"]
    order = []
    for d in target:
        if d != "1" and d in source:
            order.append(source.index(d))
        elif free:
            order.append(free.pop(0))
        else:
            return None
    return order


def place(text: str, source: tuple[str, ...], target: tuple[str, ...]) -> str:
    """Text of a tile with dims `source`, lifted and permuted so that it broadcasts to `target`."""
    if not source:
        return text
    order = permutation(source, target)
    if order is not None:
        if order == list(range(len(order))):
            return text
        return f"tl.trans({text})" if order == [1, 0] else f"tl.permute({text}, {order})"
    marks = subscript(source, target)
    if marks is None:
        named = [d for d in target if d in source]
        if sorted(named) != sorted(source):
            raise InternalError(f"cannot bring a tile over {source} to {target}")
        inner = place(text, source, tuple(named))
        return f"{inner}{subscript(tuple(named), target)}"
    return text + marks
