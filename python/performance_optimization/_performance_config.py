"""A configuration of performance optimization: its settings, what they may be, and who set them."""

from __future__ import annotations

import copy
import difflib
import enum
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from . import _config, _settings_file
from ._gpu import get_gpu_optimization_config


class OptimizationLevel(enum.Enum):
    """Defaults of several settings; "basic" and OptimizationLevel.BASIC mean the same."""

    BASIC = "basic"
    ADVANCED = "advanced"
    ULTRA = "ultra"
    CUSTOM = "custom"


class MemoryFormat(enum.Enum):
    """As headrace.set_memory_format() has them."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    CHANNELS_LAST_3D = "channels_last_3d"
    PRESERVE = "preserve"


@functools.cache
def _shared() -> dict[str, Any]:
    """The table of settings, presets and other names, which C++ has, too (include/headrace/facade/performance_options.h). ImportError:
    headrace's native library cannot be loaded."""
    from headrace import _core

    return _core.performance_settings()


class _Table(Mapping[str, Any]):
    """A part of it, each value in the form that is wanted. Read when somebody looks, so that the package can be imported without headrace."""

    def __init__(self, part: str, form: Callable[[Any], Any]) -> None:
        self._part, self._form = part, form

    def __getitem__(self, name: str) -> Any:
        return self._form(_shared()[self._part][name])

    def __iter__(self) -> Iterator[str]:
        return iter(_shared()[self._part])

    def __len__(self) -> int:
        return len(_shared()[self._part])


# What a preset sets. The first four are the levels; custom sets nothing on.
PRESETS: Mapping[str, Mapping[str, Any]] = _Table("presets", MappingProxyType)

# What optimize_training_pipeline() and tables tell together.
COMPONENTS: Mapping[str, tuple[str, ...]] = _Table("components", tuple)
LOADER_SETTINGS = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "enable_async_data_loading")

_CHOICES: dict[str, type[enum.Enum]] = {"optimization_level": OptimizationLevel, "memory_format": MemoryFormat}

# Who set a setting, the first that said something: the user, a preset, the level, a table of hardware.
EXPLICIT, PRESET, LEVEL, HARDWARE, DEFAULT = "explicit", "preset", "level", "hardware", "default"


@dataclass(init=False)
class PerformanceConfig:
    """A plain value. A level gives defaults, and what is said by keyword, or set later, goes before it:

    | level | enable_amp, enable_compile, enable_gradient_checkpointing, enable_memory_format_optimization | gradient_accumulation_steps |
    |---|---|---|
    | none is chosen, which is advanced | True | 4 |
    | basic | False | 1 |
    | advanced | True | 1 |
    | ultra, with enable_flash_attention and num_workers 8 besides | True | 8 |
    | custom, with every switch off that is on by default, but those of loaders | False | 4 |

    Under custom gradient_accumulation is on where gradient_accumulation_steps is said.

    mixed_precision and enable_mixed_precision are other names of enable_amp, and enable_batch_optimization of batch_size_optimization, to
    be set and read. What is applied of all this, and why the rest is not, PerformanceOptimizer.get_optimization_status() tells.

    num_workers: 0 to 256. prefetch_factor: batches that a worker prepares ahead, 1 to 64. The five settings of loaders are applied to
        a loader where somebody said them: a default leaves the loader's own.
    gradient_accumulation_steps: 1 to 2^20, or "auto": by the batch size, as setup_gradient_accumulation() says.
    cache_size: entries, at least 0. max_workers: of pools, 0 to 1024; by default the machine's cores.
    memory_threshold: a share of a device's memory, 0 to 1; 0: never.
    enable_profiling: False: nothing is measured, neither epochs nor what is asked for, and nothing is tuned.

    TypeError: a keyword is no setting; the nearest one is named. ValueError: a value is none of these, two names of one setting differ,
    or two settings cannot both hold, as num_workers=0 beside persistent_workers=True.
    """

    optimization_level: OptimizationLevel
    enable_amp: bool
    enable_compile: bool
    enable_gradient_checkpointing: bool
    enable_flash_attention: bool
    enable_memory_format_optimization: bool
    memory_format: MemoryFormat
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int
    enable_async_data_loading: bool
    gradient_accumulation: bool
    gradient_accumulation_steps: int | str
    enable_profiling: bool
    enable_memory_profiling: bool
    enable_caching: bool
    enable_parallelization: bool
    enable_memory_optimization: bool
    enable_compression: bool
    cache_size: int
    max_workers: int
    memory_threshold: float
    batch_size_optimization: bool

    def __init__(self, optimization_level: OptimizationLevel | str | None = None, **settings: Any) -> None:
        self._put(_said={}, optimization_level=_default("optimization_level"))
        self._fill()
        for name in sorted(settings.keys() - _names() - _aliases().keys()):
            raise TypeError(f"PerformanceConfig: no setting is called {name!r}{_nearest(name)}")
        if optimization_level is not None:
            self.optimization_level = optimization_level
        for name in _names():
            names = (name, *(other for other, of in _aliases().items() if of == name))
            given = {other: settings[other] for other in names if settings.get(other) is not None}
            if given:
                setattr(self, next(iter(given)), _config.agreed(name, given, None))
        self.validate()

    @classmethod
    def preset(cls, name: str, **settings: Any) -> PerformanceConfig:
        """One of PRESETS; what is said by keyword goes before it. ValueError: there is none of that name."""
        if name not in PRESETS:
            raise ValueError(f"preset: wanted {' | '.join(PRESETS)}, found {name!r}{_nearest(str(name), PRESETS)}")
        if name in OptimizationLevel._value2member_map_:
            return cls(name, **settings)
        config = cls(**settings)
        of_preset = {field: _checked(field, value) for field, value in PRESETS[name].items() if config.set_by(field) != EXPLICIT}
        config._put(_said={**config._said, **dict.fromkeys(of_preset, PRESET)}, **of_preset)
        config._fill()
        return config

    def set_by(self, name: str) -> str:
        """Who set this setting: "explicit" (a keyword, or an attribute that was set), "preset", "level", "hardware" or "default"."""
        field = _aliases().get(name, name)
        if field not in _names():
            raise AttributeError(f"PerformanceConfig has no setting {name!r}{_nearest(name)}")
        return self._said.get(field, DEFAULT)

    def with_hardware(self, table: Mapping[str, Any] | None = None) -> PerformanceConfig:
        """A copy, of which the settings in `table` that neither the user nor a preset nor the level has said are the table's. None: what
        get_gpu_optimization_config() says, which is nothing without CUDA. Keys of the table that are no settings are left aside."""
        if table is None:
            table = get_gpu_optimization_config()
        config = copy.copy(self)
        taken = {name: _checked(name, table[name]) for name in _names() if name in table and self.set_by(name) in (HARDWARE, DEFAULT)}
        config._put(_said={**self._said, **dict.fromkeys(taken, HARDWARE)}, **taken)
        return config

    def with_overrides(self, texts: Iterable[str]) -> PerformanceConfig:
        """A copy with these settings, each as "num_workers=8" or "--num_workers=8", as a command is given them. A value is JSON, or else a
        text. Errors as the constructor has them; ValueError: a text of another form."""
        given: dict[str, Any] = {}
        for text in texts:
            name, equals, value = text.removeprefix("--").partition("=")
            if not name or not equals:
                raise ValueError(f"override: wanted NAME=VALUE, found {text!r}")
            given[_aliases().get(name, name)] = _read_value(value)
        return PerformanceConfig(**{**self.settings(), **given})

    def validate(self) -> None:
        """ValueError: two settings that were both said cannot both hold."""
        for name, other in _shared()["contradictions"]:
            if getattr(self, name) == 0 and getattr(self, other) and self.set_by(name) == self.set_by(other) == EXPLICIT:
                raise ValueError(f"{name}: wanted at least 1 beside {other}={getattr(self, other)!r}, found 0")

    def diff(self, other: PerformanceConfig) -> ConfigDifference:
        """By setting, in which the two differ, the value here and the value there, for JSON. Its str() is a table."""
        ours, theirs = self.as_dict(), other.as_dict()
        return ConfigDifference((name, (value, theirs[name])) for name, value in ours.items() if value != theirs[name])

    def as_dict(self) -> dict[str, Any]:
        """All settings by name, for JSON."""
        return {name: _plain(getattr(self, name)) for name in _names()}

    def settings(self) -> dict[str, Any]:
        """What the user or a preset or a table of hardware has said, for JSON: with these keywords an equal configuration is made, where
        the machine has as many cores."""
        return {name: _plain(getattr(self, name)) for name in _names() if self.set_by(name) in (EXPLICIT, PRESET, HARDWARE)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes settings() as JSON, or as YAML where the name ends in .yaml or .yml, whole or not at all. ModuleNotFoundError: YAML
        without PyYAML. headrace.errors.IoError: the file cannot be written."""
        from headrace import _core

        _core.write_file(os.fspath(path), _settings_file.to_text(path, self.settings()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PerformanceConfig:
        """Of a JSON file, or a YAML file by its name, with settings by name. OSError: it cannot be read. ValueError: it is no such file.
        TypeError and ValueError of a setting begin with the path. ModuleNotFoundError: YAML without PyYAML."""
        found = _settings_file.read(path)
        try:
            return cls(**found)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{os.fspath(path)}: {error}") from None

    def table(self) -> str:
        """A line for each setting: its component, name, value and who set it."""
        places = [("", "optimization_level"), *((component, name) for component, names in COMPONENTS.items() for name in names),
                  ("model", "memory_format")]
        rows = [(component, name, str(_plain(getattr(self, name))), self.set_by(name)) for component, name in places]
        return _columns([("component", "setting", "value", "set by"), *rows])

    def __str__(self) -> str:
        return self.table()

    def __setattr__(self, name: str, value: Any) -> None:
        field = _aliases().get(name, name)
        if field not in _names():
            raise AttributeError(f"PerformanceConfig has no setting {name!r}{_nearest(name)}")
        self._put(**{field: _checked(name, value)}, _said={**self._said, field: EXPLICIT})
        if field in ("optimization_level", "gradient_accumulation_steps"):
            self._fill()

    def __getattr__(self, name: str) -> Any:  # Of what is not found otherwise.
        if name not in _aliases():
            raise AttributeError(f"PerformanceConfig has no setting {name!r}")
        return getattr(self, _aliases()[name])

    def _put(self, **attributes: Any) -> None:
        """Without a look at them. `_said` is always a new dict: a copy shares the old one."""
        self.__dict__.update(attributes)

    def _fill(self) -> None:
        """Gives the settings that nobody has said what the level or the defaults have."""
        of_level = dict(PRESETS[self.optimization_level.value])
        if "optimization_level" not in self._said:
            del of_level["gradient_accumulation_steps"]  # The default holds unless a level was chosen.
        if self._said.get("gradient_accumulation_steps", LEVEL) != LEVEL:  # Custom leaves accumulation off to who says nothing of it.
            of_level.pop("gradient_accumulation", None)
        said = {name: source for name, source in self._said.items() if source != LEVEL}
        for field in fields(self)[1:]:
            source = said.get(field.name, DEFAULT)
            if source in (EXPLICIT, PRESET):
                continue
            if field.name in of_level:
                self._put(**{field.name: of_level[field.name]})
                said[field.name] = LEVEL
            elif source == DEFAULT:
                self._put(**{field.name: (os.cpu_count() or 1) if field.name == "max_workers" else _default(field.name)})
        self._put(_said=said)


class ConfigDifference(dict[str, tuple[Any, Any]]):
    """What PerformanceConfig.diff() found."""

    def __str__(self) -> str:
        return _columns([("setting", "here", "there"), *((name, str(ours), str(theirs)) for name, (ours, theirs) in self.items())])


def performance_config(config: Any) -> PerformanceConfig:
    """The same if it is one, and the defaults of None; of a level or its name the level's; of any mapping or other object the settings
    that it has by name, and the level custom where it has none. Errors as PerformanceConfig has them."""
    if config is None or isinstance(config, PerformanceConfig):
        return config or PerformanceConfig()
    if isinstance(config, (str, OptimizationLevel)):
        return PerformanceConfig(config)
    if callable(translated := getattr(config, "performance_config", None)):  # Of a PerformanceOptimizationConfig.
        return translated()
    given = {name: value for name in (*_names(), *_aliases()) if (value := _config.setting(config, name)) is not None}
    return PerformanceConfig(given.pop("optimization_level", OptimizationLevel.CUSTOM), **given)


def _names() -> dict[str, Any]:
    """Of all settings, in their order."""
    return PerformanceConfig.__dataclass_fields__


def _aliases() -> Mapping[str, str]:
    """Other names of settings."""
    return _shared()["aliases"]


def _default(name: str) -> Any:
    return _checked(name, _shared()["settings"][name]["default"])


def _nearest(name: str, among: Iterable[str] = ()) -> str:
    near = difflib.get_close_matches(name, list(among) or [*_names(), *_aliases()], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _checked(name: str, value: Any) -> Any:
    """The value as the setting has it. ValueError: it cannot be."""
    field = _aliases().get(name, name)
    if field in _CHOICES:
        return _member(_CHOICES[field], name, value)
    wanted = _shared()["settings"][field]
    if "whole_range" in wanted:
        return _whole(name, value, *wanted["whole_range"], wanted["or_auto"])
    if "range" in wanted:
        low, high = wanted["range"]
        if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:
            raise ValueError(f"{name}: wanted a number of {low:g} to {high:g}, found {value!r}")
        return float(value)
    if not isinstance(value, bool):
        raise ValueError(f"{name}: wanted True or False, found {value!r}")
    return value


def _whole(name: str, value: Any, low: int, high: int, takes_auto: bool) -> int | str:
    if takes_auto and isinstance(value, str) and value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        auto = ' or "auto"' if takes_auto else ""
        raise ValueError(f"{name}: wanted a whole number of {low} to {high}{auto}, found {value!r}")
    return int(value)


def _member(kind: type[enum.Enum], name: str, value: Any) -> enum.Enum:
    try:
        return kind(value.lower() if isinstance(value, str) else value)
    except ValueError:
        choices = [str(member.value) for member in kind]
        near = _nearest(value.lower(), choices) if isinstance(value, str) else ""
        raise ValueError(f"{name}: wanted {' | '.join(choices)}, found {value!r}{near}") from None


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _columns(rows: list[tuple[str, ...]]) -> str:
    from headrace._charts import aligned

    return "\n".join(aligned(rows))
