"""PerformanceConfig: what its settings may be, who sets them, files of them, and the examples that make one."""

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import headrace as hr
import performance_optimization
import pytest
from headrace import _core
from performance_optimization_system import (PRESETS, MemoryFormat, OptimizationLevel, PerformanceConfig, PerformanceOptimizer,
                                             create_performance_optimizer, performance_optimization_features)

MODEL = ("enable_amp", "enable_compile", "enable_gradient_checkpointing", "enable_memory_format_optimization")


# ---- The examples ----


@dataclasses.dataclass
class Declared:
    """As the published example declares it."""

    enable_caching: bool = True
    enable_parallelization: bool = True
    enable_memory_optimization: bool = True
    enable_profiling: bool = True
    enable_compression: bool = True
    cache_size: int = 1000
    max_workers: int = os.cpu_count()
    memory_threshold: float = 0.8
    batch_size_optimization: bool = True
    mixed_precision: bool = True
    gradient_accumulation: bool = True
    gradient_accumulation_steps: int = 4


def test_the_example_of_a_declared_configuration_has_the_defaults_of_the_shipped_one():
    config = PerformanceConfig()
    assert {name: getattr(config, name) for name in dataclasses.asdict(Declared())} == dataclasses.asdict(Declared())


@pytest.mark.parametrize("package", ["performance_optimization", "performance_optimization_system"])
def test_of_the_six_names_of_the_example_those_that_are_built_are_imported_and_the_others_are_not(package):
    found: dict[str, object] = {}
    exec(f"from {package} import (PerformanceOptimizer, PerformanceConfig, BatchOptimizer)", found)  # noqa: S102
    assert found["PerformanceConfig"] is PerformanceConfig and found["PerformanceOptimizer"] is PerformanceOptimizer
    for name in ("PerformanceCache", "MemoryOptimizer", "ParallelProcessor"):
        with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
            exec(f"from {package} import {name}", {})  # noqa: S102
        with pytest.raises(AttributeError, match=f"^performance_optimization.{name}: unavailable: not built yet$"):
            getattr(performance_optimization, name)


def test_the_example_of_eight_keywords_makes_an_optimizer():
    config = PerformanceConfig(
        enable_caching=True,
        enable_parallelization=True,
        enable_memory_optimization=True,
        enable_profiling=True,
        cache_size=1000,
        max_workers=4,
        memory_threshold=0.8,
        batch_size_optimization=True,
    )
    optimizer = PerformanceOptimizer(config)
    assert optimizer.config is config and config.set_by("max_workers") == "explicit" and config.set_by("mixed_precision") == "level"


def test_the_example_of_a_custom_configuration_has_each_of_its_values():
    config = PerformanceConfig(
        enable_caching=True,
        enable_parallelization=True,
        enable_memory_optimization=True,
        enable_profiling=False,
        enable_compression=True,
        cache_size=2000,
        max_workers=8,
        memory_threshold=0.9,
        batch_size_optimization=True,
        mixed_precision=True,
        gradient_accumulation=True,
        gradient_accumulation_steps=8,
    )
    optimizer = PerformanceOptimizer(config)
    features = optimizer.get_optimization_status()["features"]
    wanted = {"enable_profiling": False, "cache_size": 2000, "max_workers": 8, "memory_threshold": 0.9, "gradient_accumulation_steps": 8}
    assert {name: getattr(config, name) for name in wanted} == wanted and all(config.set_by(name) == "explicit" for name in wanted)
    assert PerformanceConfig().diff(config).keys() | {"max_workers"} == wanted.keys()  # By default as many as there are cores.
    assert {name: features[name]["requested"] for name in ("cache_size", "max_workers", "gradient_accumulation_steps")} == {
        "cache_size": 2000, "max_workers": 8, "gradient_accumulation_steps": 8}


MINIMAL = {"enable_caching": True, "enable_memory_optimization": True, "enable_parallelization": True, "enable_profiling": False,
           "enable_compression": False, "batch_size_optimization": False}
PRODUCTION = {**MINIMAL, "enable_compression": True, "mixed_precision": True, "gradient_accumulation": True}


@pytest.mark.parametrize("settings, name", [(MINIMAL, "minimal_overhead"), (PRODUCTION, "production")])
def test_the_examples_of_production_are_presets(settings, name):
    assert PerformanceConfig(**settings) == PerformanceConfig.preset(name)


def test_the_two_presets_of_production_differ_by_compression_alone():
    difference = PerformanceConfig.preset("minimal_overhead").diff(PerformanceConfig.preset("production"))
    assert difference == {"enable_compression": (False, True)}
    assert str(difference) == "setting             here   there\nenable_compression  False  True"


def test_the_example_of_debugging_is_a_preset():
    config = PerformanceConfig(optimization_level="basic", enable_profiling=True, enable_memory_profiling=True)
    assert config == PerformanceConfig.preset("debug")


@pytest.mark.parametrize("make, level, more", [
    (lambda: PerformanceConfig(optimization_level=OptimizationLevel.BASIC, enable_amp=False, enable_compile=False,
                               enable_gradient_checkpointing=False), "basic", {}),
    (lambda: PerformanceConfig(optimization_level=OptimizationLevel.ADVANCED, **dict.fromkeys(MODEL, True)), "advanced", {}),
    (lambda: PerformanceConfig(optimization_level=OptimizationLevel.ULTRA, **dict.fromkeys(MODEL, True), enable_flash_attention=True,
                               num_workers=8, gradient_accumulation_steps=8), "ultra", {}),
    (lambda: PerformanceConfig(memory_format=MemoryFormat.CHANNELS_LAST, enable_memory_format_optimization=True), None, {}),
    (lambda: PerformanceConfig(num_workers=4, pin_memory=True, persistent_workers=True, prefetch_factor=2, enable_async_data_loading=True),
     None, {"num_workers": 4, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 2, "enable_async_data_loading": True})],
    ids=["basic", "advanced", "ultra", "memory format", "data loading"])
def test_the_examples_of_levels_and_their_settings_are_what_the_level_alone_is(make, level, more):
    config = make()
    assert config == (PerformanceConfig() if level is None else PerformanceConfig(level))
    assert {name: getattr(config, name) for name in more} == more


def test_the_settings_are_those_of_the_table_that_cpp_has():
    table = _core.performance_settings()
    assert list(table["settings"]) == [field.name for field in dataclasses.fields(PerformanceConfig)]
    assert table["settings"]["optimization_level"]["choices"] == [level.value for level in OptimizationLevel]
    assert table["settings"]["memory_format"]["choices"] == [form.value for form in MemoryFormat]
    assert list(table["presets"]) == list(PRESETS) and table["presets"]["ultra"]["num_workers"] == 8
    assert table["settings"]["num_workers"] == {"default": 4, "whole_range": [0, 256], "or_auto": False}
    assert table["settings"]["gradient_accumulation_steps"]["or_auto"] and table["settings"]["memory_threshold"]["range"] == [0.0, 1.0]


def test_custom_after_ultra_leaves_accumulation_off():
    config = PerformanceConfig("ultra")
    config.optimization_level = "custom"
    assert config == PerformanceConfig("custom") and not config.gradient_accumulation


# ---- Who sets a setting ----


def test_what_is_said_goes_before_the_level_and_the_level_before_a_table_of_hardware(monkeypatch):
    table = {"batch_size_multiplier": 1.5, "enable_amp": True, "num_workers": 16, "pin_memory": False}
    config = PerformanceConfig("ultra", enable_amp=False).with_hardware(table)
    found = {name: (getattr(config, name), config.set_by(name)) for name in ("enable_amp", "num_workers", "pin_memory", "cache_size")}
    assert found == {"enable_amp": (False, "explicit"), "num_workers": (8, "level"), "pin_memory": (False, "hardware"),
                     "cache_size": (1000, "default")}
    assert PerformanceConfig("basic").with_hardware(table).num_workers == 16
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not PerformanceConfig().with_hardware().diff(PerformanceConfig())


def test_accumulation_of_four_holds_until_a_level_is_chosen():
    found = {level: PerformanceConfig(level).gradient_accumulation_steps for level in (None, "basic", "advanced", "ultra")}
    assert found == {None: 4, "basic": 1, "advanced": 1, "ultra": 8}
    assert PerformanceConfig("basic", gradient_accumulation_steps=6).gradient_accumulation_steps == 6


def test_a_level_that_is_set_later_changes_what_nobody_has_said():
    config = PerformanceConfig("basic", num_workers=3)
    config.optimization_level = "ULTRA"
    assert config == PerformanceConfig("ultra", num_workers=3)
    config.enable_compile = False
    config.optimization_level = OptimizationLevel.ADVANCED
    assert config.enable_amp and not config.enable_compile and config.set_by("enable_compile") == "explicit"


def test_custom_sets_nothing_on_and_takes_what_is_written():
    config = PerformanceConfig("custom")
    switches = {name for name, value in config.as_dict().items() if value is True}
    assert switches == {"pin_memory", "persistent_workers", "enable_async_data_loading"}  # Of loaders: defaults leave a loader's own.
    assert all(config.set_by(name) == "default" for name in switches)
    written = PerformanceConfig("custom", gradient_accumulation_steps=8)
    assert written.gradient_accumulation and written.gradient_accumulation_steps == 8
    assert not PerformanceConfig("custom", gradient_accumulation_steps=8, gradient_accumulation=False).gradient_accumulation


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_way_to_what_is_said_and_names_itself(name):
    config = PerformanceConfig.preset(name, cache_size=7, enable_amp=False)
    assert (config.cache_size, config.enable_amp) == (7, False)
    for setting, value in PRESETS[name].items():
        if setting != "enable_amp":
            assert config.as_dict()[setting] == value and config.set_by(setting) in ("preset", "level")


def test_a_preset_contradicts_nothing_that_is_said():
    config = PerformanceConfig.preset("production", cache_size=0)
    assert (config.cache_size, config.enable_caching, config.set_by("enable_caching")) == (0, True, "preset")


def test_an_unknown_preset_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"preset: wanted basic \| .*, found 'prodution'; did you mean 'production'\?"):
        PerformanceConfig.preset("prodution")


# ---- What a setting may be ----

BAD = [("enable_amp", "yes"), ("enable_compile", 1), ("enable_caching", 0), ("enable_flash_attention", "true"), ("pin_memory", []),
       ("mixed_precision", "fp16"), ("num_workers", -1), ("num_workers", 257), ("num_workers", 2.0), ("num_workers", True),
       ("prefetch_factor", 0), ("prefetch_factor", 65), ("cache_size", -5), ("cache_size", "1000"), ("max_workers", -1),
       ("max_workers", 5000), ("gradient_accumulation_steps", 0), ("gradient_accumulation_steps", "all"),
       ("gradient_accumulation_steps", 1.5), ("memory_threshold", 1.01), ("memory_threshold", -0.1), ("memory_threshold", float("nan")),
       ("memory_threshold", "most"), ("memory_threshold", True), ("memory_format", "nhwc"), ("optimization_level", "fast")]


@pytest.mark.parametrize("name, value", BAD)
def test_a_value_that_cannot_be_is_refused_by_its_name_wherever_it_comes_from(name, value, tmp_path):
    config = PerformanceConfig()
    before = config.as_dict()
    for say in (lambda: PerformanceConfig(**{name: value}), lambda: setattr(config, name, value)):
        with pytest.raises(ValueError, match=f"^{name}: wanted .*, found ") as raised:
            say()
        assert str(raised.value).endswith(repr(value)) or "did you mean" in str(raised.value)
    assert config.as_dict() == before
    if value == value:  # JSON has no NaN.
        (tmp_path / "bad.json").write_text(json.dumps({name: value}))
        with pytest.raises(ValueError, match=f"bad.json: {name}: wanted "):
            PerformanceConfig.load(tmp_path / "bad.json")


@pytest.mark.parametrize("settings, told", [
    ({"num_workers": 0, "persistent_workers": True}, "num_workers: wanted at least 1 beside persistent_workers=True, found 0"),
    ({"num_workers": 0, "prefetch_factor": 4}, "num_workers: wanted at least 1 beside prefetch_factor=4, found 0"),
    ({"cache_size": 0, "enable_caching": True}, "cache_size: wanted at least 1 beside enable_caching=True, found 0"),
    ({"max_workers": 0, "enable_parallelization": True}, "max_workers: wanted at least 1 beside enable_parallelization=True, found 0")])
def test_two_settings_that_cannot_both_hold_are_refused_where_both_were_said(settings, told):
    with pytest.raises(ValueError) as raised:
        PerformanceConfig(**settings)
    assert str(raised.value) == told
    first, second = settings
    PerformanceConfig(**{first: settings[first]})
    config = PerformanceConfig(**{second: settings[second]})
    setattr(config, first, settings[first])
    with pytest.raises(ValueError, match=first):
        PerformanceOptimizer(config)


def test_a_setting_that_is_none_is_named_with_the_nearest():
    config = PerformanceConfig()
    with pytest.raises(AttributeError, match="no setting 'num_wokers'; did you mean 'num_workers'"):
        config.num_wokers = 3
    with pytest.raises(AttributeError, match="did you mean 'prefetch_factor'"):
        config.set_by("prefetch_faktor")


# ---- Copies, comparisons, tables ----


def test_a_copy_is_equal_and_apart():
    config = PerformanceConfig("ultra", num_workers=2)
    for made in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert made == config and made.settings() == config.settings()
        made.cache_size = 5
        assert made != config and config.set_by("cache_size") == "default" and made.diff(config) == {"cache_size": (5, 1000)}


def test_two_configurations_are_compared_and_shown():
    difference = PerformanceConfig("ultra").diff(PerformanceConfig("basic"))
    assert json.loads(json.dumps(difference)).keys() == {"optimization_level", *MODEL, "enable_flash_attention", "num_workers",
                                                         "gradient_accumulation_steps"}
    lines = str(difference).splitlines()
    assert lines[0].split() == ["setting", "here", "there"] and ["num_workers", "8", "4"] in [line.split() for line in lines]
    rows = [line.split() for line in str(PerformanceConfig("ultra", cache_size=9)).splitlines()]
    assert rows[0] == ["component", "setting", "value", "set", "by"]
    assert ["data", "num_workers", "8", "level"] in rows and ["data", "cache_size", "9", "explicit"] in rows
    assert {row[-3] for row in rows[1:]} == {field.name for field in dataclasses.fields(PerformanceConfig)}
    config = PerformanceConfig("ultra", cache_size=9, gradient_accumulation_steps="auto")
    assert str(config).startswith("component  setting                            value          set by\n"
                                  "           optimization_level                 ultra          explicit\n")
    assert "\ntraining   gradient_accumulation_steps        auto           explicit" in str(config)


# ---- Files and overrides ----


def yaml_module():
    try:
        import yaml
    except ModuleNotFoundError:  # JSON is YAML, too.
        return SimpleNamespace(safe_load=json.loads, safe_dump=lambda value, sort_keys: json.dumps(value), YAMLError=ValueError)
    return yaml


@pytest.mark.parametrize("config", [PerformanceConfig(), PerformanceConfig("ultra", mixed_precision=False, memory_threshold=0.5),
                                    PerformanceConfig("custom", num_workers=0), PerformanceConfig.preset("production"),
                                    PerformanceConfig(memory_format="preserve", gradient_accumulation_steps="auto")],
                         ids=["defaults", "ultra", "no workers", "preset", "formats"])
@pytest.mark.parametrize("name", ["config.json", "config.yaml", "config.YML"])
def test_a_file_read_back_is_equal(config, name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", yaml_module())
    config.save(tmp_path / name)
    found = PerformanceConfig.load(tmp_path / name)
    assert found == config and found.settings() == config.settings()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_yaml_without_its_package_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    for call in (PerformanceConfig().save, PerformanceConfig.load):
        with pytest.raises(ModuleNotFoundError, match="config.yaml: wanted PyYAML for a YAML file, found none"):
            call(tmp_path / "config.yaml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text, error, told", [
    ("{", ValueError, "config.json: wanted JSON: "), ("[1]", ValueError, "config.json: wanted settings by name, found list"),
    ('{"num_worker": 3}', TypeError, "config.json: PerformanceConfig: no setting is called 'num_worker'; did you mean 'num_workers'"),
    ('{"mixed_precision": true, "enable_amp": false}', ValueError, "config.json: .*names of the same setting"),
    ('{"num_workers": 0, "persistent_workers": true}', ValueError, "config.json: num_workers: wanted at least 1")])
def test_a_file_that_is_no_configuration_is_named(text, error, told, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(error, match=told):
        PerformanceConfig.load(tmp_path / "config.json")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="config.json: wanted JSON: "):
        PerformanceConfig.load(tmp_path / "config.json")


def test_a_file_that_is_not_there_and_a_folder_that_is_none_are_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        PerformanceConfig.load(tmp_path / "none.json")
    with pytest.raises(hr.Error, match="config.json"):
        PerformanceConfig().save(tmp_path / "none" / "config.json")


def test_overrides_of_a_command_go_before_what_was_said():
    config = PerformanceConfig("basic", cache_size=5).with_overrides(
        ["--num_workers=8", "optimization_level=ultra", "mixed_precision=false", "gradient_accumulation_steps=auto"])
    assert config == PerformanceConfig("ultra", cache_size=5, num_workers=8, enable_amp=False, gradient_accumulation_steps="auto")
    for text, told in (("num_workers", "override: wanted NAME=VALUE, found 'num_workers'"), ("num_workers=many", "num_workers: wanted "),
                       ("=3", "override: wanted NAME=VALUE")):
        with pytest.raises(ValueError, match=told):
            config.with_overrides([text])
    with pytest.raises(TypeError, match="did you mean 'cache_size'"):
        config.with_overrides(["cache_sise=3"])


# ---- Levels by name, and whether all this can be had ----


@pytest.mark.parametrize("level", OptimizationLevel)
def test_an_optimizer_of_a_level_is_that_of_its_configuration(level):
    for given in (level, level.value, level.value.upper(), PerformanceConfig(level)):
        optimizer = create_performance_optimizer(given)
        assert optimizer.config == PerformanceConfig(level)
        assert optimizer.get_optimization_status()["config"]["optimization_level"] == level.value
    with pytest.raises(ValueError, match="optimization_level: wanted basic .*, found 'ultraa'; did you mean 'ultra'"):
        create_performance_optimizer("ultraa")


@pytest.mark.parametrize("hidden, available", [("None", True), ("sys.modules.update({'headrace': None})", False)])
def test_the_example_of_a_flag_says_whether_the_native_library_can_be_had(hidden, available):
    code = (f"import sys; {hidden}\n"
            "from performance_optimization_system import PERFORMANCE_OPTIMIZATION_AVAILABLE\n"
            "import performance_optimization\n"
            "assert 'torch' not in sys.modules\n"
            "assert performance_optimization.PERFORMANCE_OPTIMIZATION_AVAILABLE is PERFORMANCE_OPTIMIZATION_AVAILABLE\n"
            "if not PERFORMANCE_OPTIMIZATION_AVAILABLE: print('not available')\n"
            "else: print('available')")
    environment = {**os.environ, "PYTHONPATH": str(Path(performance_optimization.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/", timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "available" if available else "not available"), done.stderr


def test_each_feature_says_whether_it_can_be_had_and_why_not():
    import torch

    features = json.loads(json.dumps(performance_optimization_features()))
    assert features.keys() == {"headrace", "torch", "engine", "cuda"}
    assert features["headrace"]["available"] and features["torch"]["available"]
    assert features["cuda"]["available"] == torch.cuda.is_available()
    assert all(bool(entry["reason"]) != entry["available"] for entry in features.values())
