"""Settings every test shares."""

from hypothesis import settings

# A busy machine is no reason to fail: no law here is about time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
