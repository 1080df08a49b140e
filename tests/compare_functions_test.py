"""hr.compare_functions: what it is given and what it gives. Verdicts are compare.CompareFunctions' (C++), by a clock of its own."""

import functools
import json
import traceback

import headrace as hr
import pytest
from own_python import run_python

SHORT = {"pairs": 2, "sample_s": 1e-4}


def test_what_was_found_is_a_dict_with_every_sample_and_a_text_with_the_names():
    calls = {"old": 0, "new": 0}

    def old():
        calls["old"] += 1

    def new():
        calls["new"] += 1

    found = hr.compare_functions(old, new, warmup_calls=5, seed=7, **SHORT)
    samples = found["samples"]
    assert found.verdict == "inconclusive", "two pairs decide nothing"
    assert found["pairs"] == len(samples["old_s"]) == len(samples["new_s"]) == len(samples["old_first"]) == 2
    assert min(samples["old_s"] + samples["new_s"]) > 0
    assert min(calls.values()) > 2 * samples["calls"], "the pairs, and what came before them"
    assert found.old_s == pytest.approx(sum(samples["old_s"]) / 2) and found.new_s == pytest.approx(sum(samples["new_s"]) / 2)
    assert found["options"] == {"pairs": 2, "budget_s": 60.0, "sample_s": 1e-4, "warmup_calls": 5, "tolerance": 0.02, "seed": 7}
    assert found["remarks"] == ["not decided after all of its 2 pairs"]
    assert found["machine"].keys() == {"CPU", "Cores", "GPU"}
    assert old.__qualname__ in str(found) and new.__qualname__ in str(found) and "not decided" in repr(found)
    assert found.slowdown.keys() == {"median", "low", "high"} and found.slowdown == found["metrics"][0]["change"]
    assert found.pairs_needed == found["metrics"][0]["pairs_needed"]
    assert json.loads(json.dumps(found)) == found


def makes_a_generator():
    yield


async def makes_a_coroutine():
    pass


@pytest.mark.parametrize("bad, message", [
    (None, "wanted a function, found NoneType"), (3, "wanted a function, found int"),
    (makes_a_generator, "makes_a_generator makes a generator; wanted a function that does its work when it is called"),
    (functools.partial(makes_a_generator), "makes a generator"), (makes_a_coroutine, "makes_a_coroutine makes a coroutine")])
def test_what_does_no_work_when_called_is_refused(bad, message):
    with pytest.raises(hr.errors.InvalidArgumentError, match=f"compare_functions: old: .*{message}"):
        hr.compare_functions(bad, lambda: None)
    with pytest.raises(hr.errors.InvalidArgumentError, match=f"compare_functions: new: .*{message}"):
        hr.compare_functions(lambda: None, bad)


@pytest.mark.parametrize("options, message", [
    ({"budget_s": 0}, "budget_s: wanted seconds above 0, found 0"), ({"budget_s": float("nan")}, "budget_s: wanted seconds above 0, found nan"),
    ({"pairs": 0}, "pairs: wanted 1 or more, found 0"), ({"sample_s": 0}, "sample_s: wanted 0.0001 to 60 seconds, found 0"),
    ({"warmup_calls": -1}, "warmup_calls: wanted 0 to 1000000, found -1"), ({"tolerance": 0}, "tolerance: wanted a share above 0 and below 1"),
    ({"pairs": 2.5}, "pairs: wanted a whole number, found 2.5"), ({"budget_s": "60"}, "budget_s: wanted a number, found '60'"),
    ({"seed": -1}, "seed: wanted 0 to 18446744073709551615, found -1"), ({"seed": 2**64}, "seed: wanted 0 to 18446744073709551615, found 1844")])
def test_options_out_of_their_range_are_refused_before_anything_is_called(options, message):
    def never():
        pytest.fail("was called")

    with pytest.raises(hr.errors.InvalidArgumentError, match=message):
        hr.compare_functions(never, never, **options)


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt])
def test_an_exception_of_a_function_passes_as_it_is_and_says_that_nothing_was_judged(kind):
    error = kind("its own")

    def raises():
        raise error

    with pytest.raises(kind) as raised:
        hr.compare_functions(lambda: None, raises, **SHORT)
    assert raised.value is error
    assert raised.value.__notes__ == ["headrace.compare_functions: the comparison has not come to its end, and nothing was judged"]
    assert "in raises" in "".join(traceback.format_exception(raised.value))


def test_functions_are_compared_without_torch():
    script = ("import sys; sys.modules['torch'] = None; import headrace as hr; "
              "print(hr.compare_functions(dict, list, pairs=1, sample_s=1e-4)['pairs'])")
    done = run_python("-c", script)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
