"""``python -m dgz`` is ``dgz``, also from a source tree that is not installed."""

from dgz.cli import main

main()
