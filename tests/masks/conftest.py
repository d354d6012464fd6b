"""A small hypothesis profile: the whole folder takes well under a minute on one slow core."""

from hypothesis import HealthCheck, settings

settings.register_profile("masks", max_examples=60, deadline=None, derandomize=True,
                          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.load_profile("masks")
