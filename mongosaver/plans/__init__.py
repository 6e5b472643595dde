"""Plans: what each method of a saver does, as generators that yield operations (see `ops`).

Everything here is pure. A plan gets a `Context` for what changes from call to call, and whatever
the method was given. Functions that take values to be stored are plain functions which return a
plan: they check and serialize on the calling thread, before anything is awaited, because a graph
may change its objects right after the call.
"""
