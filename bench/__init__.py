"""The findings: one file each. In the wheel this package is ``pytest_moetier.bench``."""
