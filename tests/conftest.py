import os

from hypothesis import settings

# A timing never fails a test. In continuous integration the examples are the same each time, so
# that a change is judged by what it does; elsewhere they are new ones, to find more.
settings.register_profile("wkvm", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("wkvm")
