"""The operator under random edits, crashes, kills and restarts, for as long as `--soak-minutes` says (see soak_operator)."""

import pytest
from processcluster import Cluster
from soak_operator import soak


def test_at_the_end_every_model_is_what_its_spec_says(cluster: Cluster, request: pytest.FixtureRequest):
    """Whatever happened meanwhile; objects of others are untouched, and Events are few."""
    minutes = request.config.getoption("soak_minutes", None)
    if not minutes:
        pytest.skip("takes minutes: give --soak-minutes 2 and name this folder")
    report = soak(cluster, minutes, num_models=100, seed=1)
    print(report.done, report.figures)

    assert report.problems == []
    assert report.done["kill the operators"] > 0
    assert report.done["restart the API server"] > 0
    assert report.figures["crashes played"] > 0
