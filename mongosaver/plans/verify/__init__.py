"""Looking whether everything that is stored is whole.

`walk` goes through a thread. `looks` has one look at some of its checkpoints and pending writes,
with `values` for what lies in blobs. What comes of it is a `report`.
"""
