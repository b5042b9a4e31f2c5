"""``python -m pytest_moetier.cli``: the ``moetier`` command."""

from pytest_moetier.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
