"""pytest-moetier: measurements as tests, for the expert cache of mixture-of-experts models.

The package imports nothing heavy: with the plugin installed, an unrelated project pays only for option parsing.
"""

__version__ = "0.1.0"
