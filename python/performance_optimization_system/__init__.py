"""The package performance_optimization under its other name: the same objects."""

from performance_optimization import *  # noqa: F403
from performance_optimization import __all__ as __all__
