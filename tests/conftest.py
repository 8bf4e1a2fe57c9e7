"""For all tests: properties are judged by what they find, never by how long an example takes.

``--hypothesis-profile=thorough`` tries many more examples than a run of all tests has time for.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("untimed"), max_examples=2000)
settings.load_profile("untimed")
