"""Looking at what is stored without changing it.

`entries` are the lines of a thread's history, `contents` is one checkpoint taken apart, `changes`
are what two of those differ in, `sizes` are what threads take. `nodes` tells nodes by the names of
channels and tasks.
"""
