"""For all tests: hypothesis does not take a slow moment of the machine for a failure."""

from hypothesis import settings

settings.register_profile("elmwright", deadline=None)
settings.load_profile("elmwright")
