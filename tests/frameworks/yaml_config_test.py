"""Files of a PerformanceConfig in YAML, as PyYAML itself writes and reads them. In an environment of its own: make check PARTS=frameworks."""

import pytest
import yaml
from performance_optimization import PerformanceConfig


@pytest.mark.parametrize("config", [PerformanceConfig(), PerformanceConfig("ultra", mixed_precision=False, memory_threshold=0.5),
                                    PerformanceConfig(memory_format="preserve", gradient_accumulation_steps="auto")],
                         ids=["defaults", "ultra", "formats"])
@pytest.mark.parametrize("name", ["config.yaml", "config.YML"])
def test_a_file_is_yaml_and_read_back_equal(config, name, tmp_path):
    config.save(tmp_path / name)
    text = (tmp_path / name).read_text()
    assert yaml.safe_load(text) == config.settings() and (text.startswith("{}") or "{" not in text)
    assert PerformanceConfig.load(tmp_path / name) == config


def test_a_file_that_a_person_wrote_is_read(tmp_path):
    (tmp_path / "config.yml").write_text("# Of the night's runs.\noptimization_level: ultra\nnum_workers: 3\nenable_amp: no\n")
    assert PerformanceConfig.load(tmp_path / "config.yml") == PerformanceConfig("ultra", num_workers=3, enable_amp=False)


@pytest.mark.parametrize("text, told", [("num_workers: [", "wanted YAML: "), ("- 1\n", "wanted settings by name, found list"),
                                        ("num_workers: !!python/object:os.system {}\n", "wanted YAML: ")])
def test_a_file_that_is_no_configuration_is_named(text, told, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=f"config.yaml: {told}"):
        PerformanceConfig.load(tmp_path / "config.yaml")
