"""bench/compare judges its comparisons as its bars say."""

from bench_scripts import script


def bench():
    return script("compare")


def outcomes(module, verdict, count, scatter=0.01, pairs_needed=None):
    return [module.Outcome(verdict, 0.0, 12, scatter, pairs_needed)] * count


def test_one_alarm_and_two_that_are_missed_are_within_the_bars():
    module = bench()
    same = outcomes(module, "equivalent", 39) + outcomes(module, "improved", 1)
    slower = outcomes(module, "regressed", 18) + outcomes(module, "equivalent", 2)
    assert module.judge(same, slower)
    assert not module.judge(same[1:] + outcomes(module, "regressed", 1), slower)
    assert not module.judge(same, slower[1:] + outcomes(module, "equivalent", 1))


def test_an_open_one_counts_where_the_scatter_is_large_and_the_pairs_are_told():
    module = bench()
    (noisy,) = outcomes(module, "inconclusive", 1, scatter=0.06, pairs_needed=90)
    (quiet,) = outcomes(module, "inconclusive", 1, scatter=0.04, pairs_needed=90)
    (untold,) = outcomes(module, "inconclusive", 1, scatter=0.06)
    assert [outcome.is_found() for outcome in (noisy, quiet, untold)] == [True, False, False]


def test_an_outcome_is_what_the_command_wrote():
    module = bench()
    document = {"pairs": 9, "metrics": [{"verdict": "regressed", "change": {"median": 0.05}, "scatter": 0.02, "pairs_needed": None}]}
    assert module.Outcome.of(document) == module.Outcome("regressed", 0.05, 9, 0.02, None)


def test_what_is_recorded_is_every_pair_of_the_job_with_itself():
    documents = [{"recorded": {"metrics": ["step_p50_s"], "effects": effects}} for effects in ([[0.01], [-0.02]], [[0.03]])]
    kept = bench().recorded(documents, {"cores": 2}, "2026-11-28T00:00:00Z")
    assert kept["recorded"] == {"metrics": ["step_p50_s"], "effects": [[0.01], [-0.02], [0.03]]}
    assert (kept["format"], kept["version"], kept["machine"]) == ("headrace-recorded-pairs", 1, {"cores": 2})
