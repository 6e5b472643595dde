"""What a checkpointer must do, one test or more for each fact, on each face of the savers."""
