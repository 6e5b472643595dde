"""The benchmark: mongosaver beside the savers it can be compared with, in one run.

Figures of different runs or machines say little about each other. So everything that is compared
here is measured in the same run, in turns of shuffled order, with one saver entered twice: what
its two entries differ by is noise, and so is any smaller difference between two savers.
"""

from __future__ import annotations
