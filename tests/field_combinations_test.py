"""Fields of every type and shape, through every way that samples take to a batch, against a plain loop."""

import itertools

import array_fields as sources
import numpy
import pytest
import torch

import headrace as hr

BATCH = 4
SEEDS = range(sources.COMBINATIONS)


def declared(data) -> dict[str, hr.Field]:
    return {name: hr.Field(encoding="text", optional=optional) if dtype == "text" else hr.Field(dtype, shape, optional=optional)
            for name, (dtype, shape, optional) in data.described.items()}


def expected(data, name, index):
    """What a batch holds of this field of one sample, and whether the sample has it."""
    value = data[index][name]
    dtype, shape, _ = data.described[name]
    if dtype == "text":
        return value or "", value is not None
    if value is None:
        in_rows = [side < 0 for side in shape].count(True) < 2  # Else nothing is known of its axes.
        extents = [max(extent, 0) if in_rows else 0 for extent in shape]
        return torch.zeros(extents, dtype=getattr(torch, dtype)), False
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(numpy.array(value)), True


def check(data, loader) -> int:
    samples = 0
    for batch in loader:
        order = list(range(samples, samples + len(batch["valid"])))
        for name in data.described:
            present = batch.present(name)
            for place, index in enumerate(order):
                value, is_there = expected(data, name, index % len(data))
                found = batch[name][place]
                assert present is None or bool(present[place]) == is_there, (name, index)
                if isinstance(value, str):
                    assert found == value, (name, index)
                else:
                    assert found.dtype == value.dtype and found.shape == value.shape, (name, index, found.shape, value.shape)
                    assert torch.equal(found, value), (name, index)
        samples += len(order)
    return samples


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_inferred_gives_what_a_plain_loop_gives(seed):
    data = sources.Combination(seed)
    data.size = min(data.size, 16)  # All of them are looked at.
    fields = {name: field for name, field in declared(data).items() if field.optional}  # What None is cannot be seen.
    for threads in (0, 3):
        loader = hr.Loader(data, batch_size=4, shuffle=False, num_workers=threads, fields=fields or None)
        assert check(data, loader) == len(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_combination_is_what_a_plain_loop_gives(seed, tmp_path):
    data = sources.Combination(seed)
    fields = declared(data)
    last = ("keep", "pad", "drop")[seed % 3]
    wanted = {"keep": len(data), "pad": -(-len(data) // BATCH) * BATCH, "drop": len(data) // BATCH * BATCH}[last]
    options = {"batch_size": BATCH, "shuffle": False, "last_batch": last}
    ways = {"the caller": (data, {"num_workers": 0, "fields": fields}), "threads": (data, {"num_workers": 7, "fields": fields}),
            "decoded in a cache": (data, {"num_workers": 2, "cache": "decoded", "fields": fields}),
            "encoded in a cache": (data, {"num_workers": 2, "cache": "encoded", "fields": fields}),
            "a pack": (f"pack:{tmp_path}/all.pack", {"num_workers": 2}),
            "processes": (data, {"num_workers": 1 + seed % 2, "worker_type": "process", "fields": fields}),
            "a sampler": (data, {"num_workers": 2, "fields": fields, "sampler": range(len(data))})}
    assert hr.pack(data, tmp_path / "all.pack", fields=fields) == len(data)
    for way, (source, how) in ways.items():
        loader = hr.Loader(source, **options, **how)
        for _ in range(2 if "cache" in how else 1):
            assert check(data, loader) == wanted, way


def test_the_combinations_are_of_every_type_dense_ragged_and_absent():
    first, rows, ranks, empty_ends, others = set(), set(), set(), 0, set()
    for seed in SEEDS:
        data = sources.Combination(seed)
        (dtype, shape, optional), *rest = data.described.values()
        ragged = [side < 0 for side in shape]
        first.add((dtype, "absent" if optional else "shapes" if sum(ragged) > 1 else "rows" if any(ragged) else "dense"))
        ranks.add((len(shape), any(ragged)))
        others.update((dtype == "text", optional) for dtype, _, optional in rest)
        named = [name for name, (_, shape, _) in data.described.items() if -1 in shape]
        for index in range(len(data)):
            rows.update(len(value) for name, value in data[index].items() if name in named and value is not None)
        last = range(len(data) - (len(data) % BATCH or BATCH), len(data))
        empty_ends += any(all(data[index][name] is not None and len(data[index][name]) == 0 for index in last) for name in named)
    assert first == set(itertools.product(sources.DTYPES, sources.FORMS))
    assert {0, 1, 300} <= rows and ranks >= {(0, False), (1, False), (2, False), (3, False), (1, True), (2, True), (3, True)}
    assert empty_ends >= 10 and others == set(itertools.product((False, True), (False, True)))
