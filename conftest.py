"""pytester for the tests of this software."""

pytest_plugins = ["pytester"]
