"""`python -m mongosaver.cli`, where the command is not on the PATH."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    # Not by an import statement: app.py imports this package, and so would be its own importer.
    sys.exit(importlib.import_module("mongosaver.cli").main())
