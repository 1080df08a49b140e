"""What the operations of headrace.transforms have alike."""

from __future__ import annotations

from typing import Any

from . import _core


class Operation:
    """One operation of a list of transforms, with the name and the parameters that it has in torchvision.transforms.v2.

    It never changes; two of the same parameters are equal. A parameter is checked when the operation is made: a value that nothing
    here does raises InvalidArgumentError, or is refused by the Loader where it depends on the rest of the list. None is the
    default, lists become tuples, a number where sizes are wanted a tuple of it, torch.float32 "float32"."""

    def __post_init__(self) -> None:
        table = _core.operation_table(type(self).__name__, dict(vars(self)))
        for name in vars(self):
            value = table[name]
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)

    def as_table(self) -> dict[str, Any]:
        """Its table in a recipe's list, [[data.transforms]]: name and parameters. A Loader takes any object with this method."""
        return {"name": type(self).__name__, **vars(self)}
